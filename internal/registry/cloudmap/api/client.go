package api

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
	"github.com/go-logr/logr"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// DefaultName is the client's name in metrics unless Config says otherwise.
const DefaultName = "cloudmap"

const (
	// RequestTimeout is far above AWS's usual latency, and below the time after which a missing
	// heartbeat counts.
	RequestTimeout = 10 * time.Second
	// operationTimeout bounds the wait for an asynchronous operation: creating an HTTP namespace
	// takes seconds.
	operationTimeout = 2 * time.Minute
	// MaxDiscovered is the maximum number of instances that DiscoverInstances returns. It has no
	// pagination.
	MaxDiscovered = 1000
	// listPage is the maximum page size of the List operations.
	listPage = 100
)

// Config configures a Client for one account and Region.
type Config struct {
	// Name is the client's name in metrics; "" is DefaultName.
	Name string
	// Region and Endpoint come from AWS's own environment variables and files if they are empty.
	Region, Endpoint string
	// DataEndpoint is the endpoint of DiscoverInstances and DiscoverInstancesRevision if it is
	// another one than Endpoint, as with VPC endpoints; "" is AWS's own, or Endpoint.
	DataEndpoint string
	// Role is the role to assume for all requests, if it has an ARN.
	Role Role
	// NamespaceOwner is the account that shares the clusterset's namespace with this account
	// through AWS RAM; "" if the namespace is in this account. The instance view stays in this
	// account.
	NamespaceOwner string
	// Insecure allows an endpoint with http://, of Cloud Map and of STS. To the own host it is
	// always allowed.
	Insecure bool
	// Rates replaces the default rates of the operations in it.
	Rates map[string]Rate
	// Metrics may be nil.
	Metrics *registry.Metrics
	// Logger logs the first answer with each error code that is not known.
	Logger logr.Logger

	// HTTPClient replaces AWS's HTTP client, and Credentials AWS's default chain of credentials,
	// unless nil.
	HTTPClient  aws.HTTPClient
	Credentials aws.CredentialsProvider
}

// Client makes all requests to AWS Cloud Map in one account and Region. It limits the rate of each
// operation, as AWS's quotas do. The registries of a process share one client for each account and
// Region. Except for throttled writes it does not retry: its callers are level-triggered and retry
// with the state of that time.
type Client struct {
	name string
	sdk  *servicediscovery.Client
	// data is for the requests of the data plane.
	data     *servicediscovery.Client
	limiters map[string]*rateLimiter
	unknown  *unknownAnswers
	names    *namespaceNames
	arns     *arns
	metrics  *registry.Metrics
	// owner is the account that shares its namespaces, "" for the own account.
	owner string
	// priority orders the requests that wait for the rate limit.
	priority Priority
}

// NewClient creates a client. It makes no request.
func NewClient(ctx context.Context, cfg Config) (*Client, error) {
	loaded, err := loadAWS(ctx, cfg)
	if err != nil {
		return nil, err
	}
	options := func(o *servicediscovery.Options) {
		if cfg.Endpoint != "" {
			o.BaseEndpoint = aws.String(cfg.Endpoint)
		}
		o.HTTPClient = plainBodies{o.HTTPClient}
		if cfg.HTTPClient != nil {
			o.HTTPClient = cfg.HTTPClient
		}
	}
	sdk := servicediscovery.NewFromConfig(loaded, options)
	endpoint := aws.ToString(sdk.Options().BaseEndpoint)
	dataEndpoint, prefixed, err := dataPlane(endpoint, cfg.DataEndpoint)
	if err := cmp.Or(err, cfg.checkEndpoint(endpoint), cfg.checkEndpoint(dataEndpoint)); err != nil {
		return nil, err
	}
	data := servicediscovery.NewFromConfig(loaded, options, func(o *servicediscovery.Options) {
		if dataEndpoint != "" {
			o.BaseEndpoint = aws.String(dataEndpoint)
		}
		if !prefixed {
			o.APIOptions = append(o.APIOptions, withoutHostPrefix)
		}
	})
	c := &Client{priority: PriorityNormal, name: cmp.Or(cfg.Name, DefaultName), sdk: sdk, data: data, limiters: map[string]*rateLimiter{}, names: &namespaceNames{log: cfg.Logger}, arns: &arns{}, unknown: &unknownAnswers{log: cfg.Logger, first: map[unknownAnswer]string{}}, metrics: cfg.Metrics, owner: cfg.NamespaceOwner}
	standard := DefaultRates()
	rates := maps.Clone(standard)
	maps.Copy(rates, cfg.Rates)
	for operation, r := range rates {
		if _, known := standard[operation]; !known {
			return nil, fmt.Errorf("rate of %s: the controller makes no such request, only %s",
				operation, strings.Join(slices.Sorted(maps.Keys(standard)), ", "))
		}
		if r.PerSecond <= 0 || r.Burst < 1 {
			return nil, fmt.Errorf("rate of %s: %v requests per second with a burst of %d: both must be positive", operation, r.PerSecond, r.Burst)
		}
		c.limiters[operation] = newRateLimiter(r, func(perSecond float64) { c.metrics.SetRequestLimit(c.name, operation, perSecond) })
	}
	return c, nil
}

// Name returns the client's name in metrics.
func (c *Client) Name() string { return c.name }

// plainBodies hides the WriteTo method of request bodies.
//
// The SDK closes a request's body when the response begins, and net/http then tries to read the
// rest of the body. A closed body of the SDK returns io.EOF. For Read that is the end, but for
// WriteTo it is a failure, and net/http closes the connection while the response is read. This
// takes a server that responds within microseconds, as a local one does.
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

// WithPriority returns a client that shares c's rate limits and makes requests of this priority.
func (c *Client) WithPriority(p Priority) *Client {
	other := *c
	other.priority = p
	return &other
}

// errTimeout is the cause of a request that was canceled because it took too long.
var errTimeout = fmt.Errorf("no answer within %v", RequestTimeout)

// call makes one request within the rate limit and RequestTimeout, counts it, and explains its
// error.
func call[In, Out any](ctx context.Context, c *Client, operation string,
	do func(context.Context, *In, ...func(*servicediscovery.Options)) (*Out, error), in *In) (*Out, error) {
	return callOn(ctx, c, "", operation, do, in)
}

// callOn is call for a request that names a resource by its ID. If the resource does not exist,
// the error is IsNotFound, also where IAM denies the request for the lack of the resource's tags.
func callOn[In, Out any](ctx context.Context, c *Client, id, operation string,
	do func(context.Context, *In, ...func(*servicediscovery.Options)) (*Out, error), in *In) (*Out, error) {
	limiter := c.limiters[operation]
	if err := limiter.wait(ctx, c.priority); err != nil {
		return nil, newRequestError(operation, fmt.Errorf("waiting for the client-side rate limit: %w", err))
	}
	start := time.Now()
	out, err := attempt(ctx, do, in)
	now := time.Now()
	if isAccessDenied(err) && c.isMissing(ctx, id) {
		err = &types.ResourceNotFoundException{Message: aws.String(id + " was deleted")}
	}
	result := ResultOf(err)
	limiter.observe(now, result)
	c.metrics.ObserveRequest(c.name, operation, result, now.Sub(start))
	if err != nil {
		failed := newRequestError(operation, err)
		failed.id = c.unknown.noteRequest(operation, err)
		return nil, failed
	}
	return out, nil
}

// attempt makes one request within RequestTimeout.
func attempt[In, Out any](ctx context.Context, do func(context.Context, *In, ...func(*servicediscovery.Options)) (*Out, error), in *In) (*Out, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, RequestTimeout, errTimeout)
	defer cancel()
	out, err := do(ctx, in)
	if err != nil && errors.Is(context.Cause(ctx), errTimeout) {
		err = errTimeout
	}
	return out, err
}

// DiscoverInstances returns the instances of a service that have the attributes of query, all of
// them without a query. complete is false if there may be more than MaxDiscovered.
func (c *Client) DiscoverInstances(ctx context.Context, namespace, service string, query map[string]string) (instances []Instance, complete bool, err error) {
	instances, complete, _, err = c.DiscoverInstancesAtRevision(ctx, namespace, service, query)
	return instances, complete, err
}

// DiscoverInstancesAtRevision is DiscoverInstances that also returns the revision of the service's
// instances.
func (c *Client) DiscoverInstancesAtRevision(ctx context.Context, namespace, service string, query map[string]string) (
	instances []Instance, complete bool, revision int64, err error) {
	out, err := call(ctx, c, "DiscoverInstances", c.data.DiscoverInstances, &servicediscovery.DiscoverInstancesInput{
		NamespaceName:   aws.String(namespace),
		ServiceName:     aws.String(service),
		OwnerAccount:    c.ownerAccount(),
		QueryParameters: query,
		HealthStatus:    types.HealthStatusFilterAll,
		MaxResults:      aws.Int32(MaxDiscovered),
	})
	if err != nil {
		return nil, false, 0, err
	}
	for _, i := range out.Instances {
		found := Instance{ID: aws.ToString(i.InstanceId), Attributes: i.Attributes}
		if i.HealthStatus == types.HealthStatusHealthy || i.HealthStatus == types.HealthStatusUnhealthy {
			found.Health = string(i.HealthStatus)
		}
		instances = append(instances, found)
	}
	return instances, len(instances) < MaxDiscovered, aws.ToInt64(out.InstancesRevision), nil
}

// InstancesRevision returns the revision of a service's instances, which grows with every change of
// them.
func (c *Client) InstancesRevision(ctx context.Context, namespace, service string) (int64, error) {
	out, err := call(ctx, c, "DiscoverInstancesRevision", c.data.DiscoverInstancesRevision, &servicediscovery.DiscoverInstancesRevisionInput{
		NamespaceName: aws.String(namespace),
		ServiceName:   aws.String(service),
		OwnerAccount:  c.ownerAccount(),
	})
	if err != nil {
		return 0, err
	}
	return aws.ToInt64(out.InstancesRevision), nil
}

// RegisterInstance writes an instance and returns the ID of the asynchronous operation. AWS
// documents Health only for a new instance: SetHealth changes that of others.
func (c *Client) RegisterInstance(ctx context.Context, serviceID string, instance Instance) (operation string, err error) {
	if instance.Health != "" {
		instance.Attributes = maps.Clone(instance.Attributes)
		instance.Attributes[AttrInitialHealth] = instance.Health
	}
	err = c.RetryThrottled(ctx, func() error {
		out, err := callOn(ctx, c, serviceID, "RegisterInstance", c.sdk.RegisterInstance, &servicediscovery.RegisterInstanceInput{
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

// DeregisterInstance removes an instance. It succeeds if there is none.
func (c *Client) DeregisterInstance(ctx context.Context, serviceID, instanceID string) error {
	_, err := c.StartDeregistration(ctx, serviceID, instanceID)
	return err
}

// StartDeregistration is DeregisterInstance that also returns the ID of the asynchronous operation,
// "" if there is no such instance.
func (c *Client) StartDeregistration(ctx context.Context, serviceID, instanceID string) (operation string, err error) {
	err = c.RetryThrottled(ctx, func() error {
		out, err := callOn(ctx, c, serviceID, "DeregisterInstance", c.sdk.DeregisterInstance, &servicediscovery.DeregisterInstanceInput{
			ServiceId:  aws.String(serviceID),
			InstanceId: aws.String(instanceID),
		})
		if err == nil {
			operation = aws.ToString(out.OperationId)
		}
		return err
	})
	if err != nil && !IsNotFound(err) {
		return "", fmt.Errorf("deregistering instance %s: %w", instanceID, err)
	}
	return operation, nil
}

// SetHealth sets the health of an instance in a service with a custom health check. AWS takes about
// 30 s. If there is no such instance, its registration may be in progress: the error is not
// IsNotFound then, which would be about the service.
func (c *Client) SetHealth(ctx context.Context, serviceID, instanceID, health string) error {
	err := c.RetryThrottled(ctx, func() error {
		_, err := callOn(ctx, c, serviceID, "UpdateInstanceCustomHealthStatus", c.sdk.UpdateInstanceCustomHealthStatus, &servicediscovery.UpdateInstanceCustomHealthStatusInput{
			ServiceId:  aws.String(serviceID),
			InstanceId: aws.String(instanceID),
			Status:     types.CustomHealthStatus(health),
		})
		return err
	})
	var missing *types.InstanceNotFound
	switch {
	case errors.As(err, &missing):
		return fmt.Errorf("setting the health of instance %s: it is not registered yet", instanceID)
	case err != nil:
		return fmt.Errorf("setting the health of instance %s: %w", instanceID, err)
	}
	return nil
}

const (
	// throttledPause is the longest pause after a throttled request, and maxAttempts the number of
	// attempts. The rate limiter slows the attempts down: during a longer pause a token would go to
	// a request of lower priority.
	throttledPause = 500 * time.Millisecond
	maxAttempts    = 7
)

// RetryThrottled repeats a request that AWS throttles, up to maxAttempts times. A write that AWS
// refuses because another write of the same instance is in progress is repeated after that one.
func (c *Client) RetryThrottled(ctx context.Context, request func() error) error {
	for attempt := 1; ; {
		err := request()
		switch {
		case err == nil:
			return nil
		case !IsThrottled(err):
			if err := c.awaitDuplicate(ctx, err); err != nil {
				return err
			}
			continue
		case attempt == maxAttempts:
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(Jitter(throttledPause)):
		}
		attempt++
	}
}

// awaitDuplicate waits for the operation that is in progress if err is a DuplicateRequest. It
// returns any other err.
func (c *Client) awaitDuplicate(ctx context.Context, err error) error {
	var duplicate *types.DuplicateRequest
	if !errors.As(err, &duplicate) || aws.ToString(duplicate.DuplicateOperationId) == "" {
		return err
	}
	// The result of the other operation does not matter, because this request replaces it.
	_, err = c.AwaitOperation(ctx, aws.ToString(duplicate.DuplicateOperationId))
	if IsFailedOperation(err) || IsNotFound(err) {
		return nil
	}
	return err
}

// AwaitOperation waits until an operation has ended and returns the IDs of the created resources by
// kind.
func (c *Client) AwaitOperation(ctx context.Context, operation string) (targets map[string]string, err error) {
	ctx, cancel := context.WithTimeout(ctx, operationTimeout)
	defer cancel()
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		targets, done, err := c.GetOperation(ctx, operation)
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

// GetOperation reads the status of an operation. A failed operation is an *OperationError.
func (c *Client) GetOperation(ctx context.Context, id string) (targets map[string]string, done bool, err error) {
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
		failed := &OperationError{Operation: out.Operation.Type, Code: aws.ToString(out.Operation.ErrorCode), Message: aws.ToString(out.Operation.ErrorMessage)}
		if ResultOf(failed) == ResultUnknown {
			failed.ID = c.unknown.note(string(failed.Operation), failed, id)
		}
		return nil, true, failed
	}
	return nil, false, nil
}
