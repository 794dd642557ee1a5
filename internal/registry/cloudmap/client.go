package cloudmap

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery/types"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// Name is the backend's name in metrics and flags.
const Name = "cloudmap"

const (
	// requestTimeout is far above what AWS takes, and below the heartbeats that others miss.
	requestTimeout = 10 * time.Second
	// operationTimeout bounds the wait for an asynchronous operation: HTTP namespaces take seconds.
	operationTimeout = 2 * time.Minute
	// maxDiscovered is the most instances that DiscoverInstances gives, without a way to ask for more.
	maxDiscovered = 1000
	// listPage is the most that a List operation gives at once.
	listPage = 100
)

// ClientConfig says how to talk to AWS Cloud Map, in one account and Region.
type ClientConfig struct {
	// Name tells the client from others in metrics; "" is the backend's.
	Name string
	// Region and Endpoint come from AWS's own environment variables and files when they are empty.
	Region, Endpoint string
	// Role is assumed for all requests if it has an ARN.
	Role Role
	// NamespaceOwner is the account that has shared the clusterset's namespace with ours through AWS RAM; "" when it is
	// our own. The instance view stays in our own account.
	NamespaceOwner string
	// Rates replace the default rate of the operations that they name.
	Rates map[string]Rate
	// Metrics may be nil.
	Metrics *registry.Metrics

	// transport is the network; nil is AWS's own client. credentials come before AWS's chain. Only tests set them.
	transport   aws.HTTPClient
	credentials aws.CredentialsProvider
}

// Client makes every request to AWS Cloud Map in one account and Region, at a pace for each operation: that is what AWS's
// quotas are for. One client serves all registries of a process that are there.
// It does not retry: whoever uses it is level-triggered and comes back with what is needed then.
type Client struct {
	name    string
	sdk     *servicediscovery.Client
	paces   map[string]*pace
	metrics *registry.Metrics
	// owner is the account whose shared namespaces are meant, "" for our own.
	owner string
	// class is whose requests it makes.
	class class
}

// NewClient makes a client with AWS's default chain of credentials, upon which a role may be assumed. It makes no request.
func NewClient(ctx context.Context, cfg ClientConfig) (*Client, error) {
	loaded, err := loadAWS(ctx, cfg)
	if err != nil {
		return nil, err
	}
	sdk := servicediscovery.NewFromConfig(loaded, func(o *servicediscovery.Options) {
		if cfg.Endpoint != "" {
			o.BaseEndpoint = aws.String(cfg.Endpoint)
		}
		o.HTTPClient = plainBodies{o.HTTPClient}
		if cfg.transport != nil {
			o.HTTPClient = cfg.transport
		}
		// The SDK puts "data-" before the host name of DiscoverInstances, custom endpoints included: data-127.0.0.1
		// is nobody's.
		if o.BaseEndpoint != nil {
			o.APIOptions = append(o.APIOptions, withoutHostPrefix)
		}
	})
	c := &Client{class: classPages, name: cmp.Or(cfg.Name, Name), sdk: sdk, paces: map[string]*pace{}, metrics: cfg.Metrics, owner: cfg.NamespaceOwner}
	rates := maps.Clone(defaultRates)
	maps.Copy(rates, cfg.Rates)
	for operation, r := range rates {
		if _, known := defaultRates[operation]; !known {
			return nil, fmt.Errorf("rate of %s: the controller makes no such request; those that it makes are %s",
				operation, strings.Join(slices.Sorted(maps.Keys(defaultRates)), ", "))
		}
		if r.PerSecond <= 0 || r.Burst < 1 {
			return nil, fmt.Errorf("rate of %s: %v a second with bursts of %d: both must be positive", operation, r.PerSecond, r.Burst)
		}
		c.paces[operation] = newPace(r, func(perSecond float64) { c.metrics.Limit(c.name, operation, perSecond) })
	}
	return c, nil
}

// plainBodies sends requests whose bodies are nothing but readers.
//
// The SDK closes a request's body when the answer begins, and net/http looks then for more of the body. A closed body of
// the SDK says io.EOF: to a Read that is the end, but from the WriteTo that it has too it is a failure, upon which
// net/http closes the connection under the answer. It takes a server that answers within microseconds, as a local one does.
type plainBodies struct{ servicediscovery.HTTPClient }

// Do sends a request.
func (c plainBodies) Do(request *http.Request) (*http.Response, error) {
	if request.Body != nil && request.Body != http.NoBody {
		request.Body = struct{ io.ReadCloser }{request.Body}
	}
	return c.HTTPClient.Do(request)
}

func withoutHostPrefix(stack *middleware.Stack) error {
	return stack.Initialize.Add(middleware.InitializeMiddlewareFunc("withoutHostPrefix", func(ctx context.Context,
		in middleware.InitializeInput, next middleware.InitializeHandler) (middleware.InitializeOutput, middleware.Metadata, error) {
		return next.HandleInitialize(smithyhttp.DisableEndpointHostPrefix(ctx, true), in)
	}), middleware.Before)
}

// as is c for requests of a class.
func (c *Client) as(class class) *Client {
	other := *c
	other.class = class
	return &other
}

// errNoAnswer is a request that took too long.
var errNoAnswer = fmt.Errorf("no answer within %v", requestTimeout)

// call makes one request: paced, bounded in time, counted, its error explained.
func call[In, Out any](ctx context.Context, c *Client, operation string,
	do func(context.Context, *In, ...func(*servicediscovery.Options)) (*Out, error), in *In) (*Out, error) {
	p := c.paces[operation]
	if err := p.wait(ctx, c.class); err != nil {
		return nil, newRequestError(operation, fmt.Errorf("waiting for our own rate limit: %w", err))
	}
	ctx, cancel := context.WithTimeoutCause(ctx, requestTimeout, errNoAnswer)
	defer cancel()
	began := time.Now()
	out, err := do(ctx, in)
	if err != nil && errors.Is(context.Cause(ctx), errNoAnswer) {
		err = errNoAnswer
	}
	now, result := time.Now(), resultOf(err)
	p.done(now, result)
	c.metrics.Request(c.name, operation, result, now.Sub(began))
	if err != nil {
		return nil, newRequestError(operation, err)
	}
	return out, nil
}

// discover reads instances of a service, all or those with the given attributes. whole is false when there may be more.
func (c *Client) discover(ctx context.Context, namespace, service string, query map[string]string) (instances []plan.Instance, whole bool, err error) {
	out, err := c.discovered(ctx, namespace, service, query)
	if err != nil {
		return nil, false, err
	}
	return instancesOf(out), len(out.Instances) < maxDiscovered, nil
}

// discovered is the answer that discover reads.
func (c *Client) discovered(ctx context.Context, namespace, service string, query map[string]string) (*servicediscovery.DiscoverInstancesOutput, error) {
	return call(ctx, c, "DiscoverInstances", c.sdk.DiscoverInstances, &servicediscovery.DiscoverInstancesInput{
		NamespaceName:   aws.String(namespace),
		ServiceName:     aws.String(service),
		OwnerAccount:    c.ownerAccount(),
		QueryParameters: query,
		HealthStatus:    types.HealthStatusFilterAll,
		MaxResults:      aws.Int32(maxDiscovered),
	})
}

func instancesOf(out *servicediscovery.DiscoverInstancesOutput) []plan.Instance {
	var instances []plan.Instance
	for _, i := range out.Instances {
		instances = append(instances, plan.Instance{ID: aws.ToString(i.InstanceId), Attributes: i.Attributes})
	}
	return instances
}

// register writes an instance and returns the operation that does it.
func (c *Client) register(ctx context.Context, serviceID string, instance plan.Instance) (operation string, err error) {
	err = c.persist(ctx, func() error {
		out, err := call(ctx, c, "RegisterInstance", c.sdk.RegisterInstance, &servicediscovery.RegisterInstanceInput{
			ServiceId:  aws.String(serviceID),
			InstanceId: aws.String(instance.ID),
			Attributes: instance.Attributes,
		})
		if err == nil {
			operation = aws.ToString(out.OperationId)
		}
		return err
	})
	if err != nil {
		return "", fmt.Errorf("registering instance %s: %w", instance.ID, err)
	}
	return operation, nil
}

// deregister removes an instance; one that is not there is removed.
func (c *Client) deregister(ctx context.Context, serviceID, instanceID string) error {
	err := c.persist(ctx, func() error {
		_, err := call(ctx, c, "DeregisterInstance", c.sdk.DeregisterInstance, &servicediscovery.DeregisterInstanceInput{
			ServiceId:  aws.String(serviceID),
			InstanceId: aws.String(instanceID),
		})
		return err
	})
	if err != nil && !isNotFound(err) {
		return fmt.Errorf("deregistering instance %s: %w", instanceID, err)
	}
	return nil
}

const (
	// writeAgain is up to how long a write that was throttled pauses, and writeAttempts how often it is tried. It is the pace that
	// slows it down: who pauses for longer would not be there when a token comes, and the less urgent would take it.
	writeAgain    = 500 * time.Millisecond
	writeAttempts = 7
)

// persist repeats a write that is throttled some times, and one that stands behind another write of the same instance when that one
// is done.
func (c *Client) persist(ctx context.Context, write func() error) error {
	for attempt := 1; ; {
		err := write()
		switch {
		case err == nil:
			return nil
		case resultOf(err) != resultThrottled:
			if err := c.awaitDuplicate(ctx, err); err != nil {
				return err
			}
			continue
		case attempt == writeAttempts:
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(jittered(writeAgain)):
		}
		attempt++
	}
}

// awaitDuplicate waits for the operation that stands in the way of a request which failed with err, or returns err.
func (c *Client) awaitDuplicate(ctx context.Context, err error) error {
	var duplicate *types.DuplicateRequest
	if !errors.As(err, &duplicate) || aws.ToString(duplicate.DuplicateOperationId) == "" {
		return err
	}
	// How the other operation ended does not matter: ours comes after it. Only an end of waiting does.
	_, err = c.await(ctx, aws.ToString(duplicate.DuplicateOperationId))
	var failed *operationError
	if errors.As(err, &failed) || isNotFound(err) {
		return nil
	}
	return err
}

// operationError is an asynchronous operation that was accepted and failed later.
type operationError struct{ code, message string }

func (e *operationError) Error() string {
	return fmt.Sprintf("AWS Cloud Map accepted the request but could not do it: %s: %s", e.code, e.message)
}

// await waits until an operation has ended and returns what it made, by kind.
func (c *Client) await(ctx context.Context, operation string) (targets map[string]string, err error) {
	ctx, cancel := context.WithTimeout(ctx, operationTimeout)
	defer cancel()
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		targets, done, err := c.operation(ctx, operation)
		if done || err != nil {
			return targets, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for operation %s: %w", operation, ctx.Err())
		case <-time.After(pause):
		}
	}
}

// operation looks once how an operation stands. A failed one is an *operationError.
func (c *Client) operation(ctx context.Context, id string) (targets map[string]string, done bool, err error) {
	out, err := call(ctx, c, "GetOperation", c.sdk.GetOperation, &servicediscovery.GetOperationInput{
		OperationId:  aws.String(id),
		OwnerAccount: c.ownerAccount(),
	})
	if err != nil {
		return nil, false, err
	}
	switch out.Operation.Status {
	case types.OperationStatusSuccess:
		return out.Operation.Targets, true, nil
	case types.OperationStatusFail:
		return nil, true, &operationError{code: aws.ToString(out.Operation.ErrorCode), message: aws.ToString(out.Operation.ErrorMessage)}
	}
	return nil, false, nil
}
