package awsprobe

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials/stscreds"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
)

// connection has the clients of one identity in AWS. All of them use the names of AWS's hosts.
type connection struct {
	// api is the product's client.
	api *api.Client
	// sdk is AWS's own client, for answers that api does not return, and control the same without
	// the prefix data- of the hosts of the data plane.
	sdk, control *servicediscovery.Client
	region       string
	account, arn string
}

// connect creates the clients of an account, or of a role that it may assume. It asks STS who that
// is.
func (o Options) connect(ctx context.Context, role api.Role) (*connection, error) {
	loaded, err := awsconfig.LoadDefaultConfig(ctx, awsconfig.WithRegion(o.Region),
		awsconfig.WithCredentialsProvider(o.Credentials), awsconfig.WithRetryer(func() aws.Retryer { return aws.NopRetryer{} }))
	if err != nil {
		return nil, fmt.Errorf("reading the AWS configuration: %w", err)
	}
	if loaded.Region == "" {
		return nil, errors.New("no Region is known: set --region or AWS_REGION")
	}
	transport := transport{next: loaded.HTTPClient}
	if o.HTTPClient != nil {
		transport.next = o.HTTPClient
	}
	if transport.endpoint, err = o.endpoint(); err != nil {
		return nil, err
	}
	loaded.HTTPClient = transport
	if role.ARN != "" {
		loaded.Credentials = aws.NewCredentialsCache(stscreds.NewAssumeRoleProvider(sts.NewFromConfig(loaded), role.ARN,
			func(s *stscreds.AssumeRoleOptions) {
				s.RoleSessionName = namePrefix
				if role.ExternalID != "" {
					s.ExternalID = aws.String(role.ExternalID)
				}
			}))
	}
	who, err := sts.NewFromConfig(loaded).GetCallerIdentity(ctx, &sts.GetCallerIdentityInput{})
	if err != nil {
		return nil, fmt.Errorf("asking STS for the identity of %s: %w", cmp.Or(role.ARN, "the caller"), err)
	}
	c := &connection{
		sdk: servicediscovery.NewFromConfig(loaded),
		control: servicediscovery.NewFromConfig(loaded, func(s *servicediscovery.Options) {
			s.APIOptions = append(s.APIOptions, withoutHostPrefix)
		}),
		region: loaded.Region, account: aws.ToString(who.Account), arn: aws.ToString(who.Arn),
	}
	c.api, err = api.NewClient(ctx, api.Config{Region: loaded.Region, HTTPClient: transport, Credentials: loaded.Credentials})
	return c, err
}

func withoutHostPrefix(stack *middleware.Stack) error {
	return stack.Initialize.Add(middleware.InitializeMiddlewareFunc("withoutHostPrefix", func(ctx context.Context,
		in middleware.InitializeInput, next middleware.InitializeHandler) (middleware.InitializeOutput, middleware.Metadata, error) {
		return next.HandleInitialize(smithyhttp.DisableEndpointHostPrefix(ctx, true), in)
	}), middleware.Before)
}

// transport sends requests, to Options.Endpoint if there is one, and tells the recorder of the
// context about them.
type transport struct {
	next     aws.HTTPClient
	endpoint *url.URL
}

// endpoint returns the address of cloudmap-local, nil without one.
func (o Options) endpoint() (*url.URL, error) {
	if o.Endpoint == "" {
		return nil, nil
	}
	endpoint, err := url.Parse(o.Endpoint)
	if err != nil || endpoint.Host == "" {
		return nil, fmt.Errorf("--endpoint %s: expected a URL such as http://127.0.0.1:8080", o.Endpoint)
	}
	return endpoint, nil
}

// Do implements aws.HTTPClient. A request to Options.Endpoint keeps the name of AWS's host, which
// is signed.
func (t transport) Do(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithTimeout(r.Context(), api.RequestTimeout)
	defer cancel()
	r = r.WithContext(ctx)
	if r.Body != nil && r.Body != http.NoBody {
		r.Body = struct{ io.ReadCloser }{r.Body} // without WriteTo, as package api has it
	}
	if t.endpoint != nil {
		r.Host = cmp.Or(r.Host, r.URL.Host)
		to := *r.URL
		to.Scheme, to.Host = t.endpoint.Scheme, t.endpoint.Host
		r.URL = &to
	}
	begin := time.Now()
	answer, err := t.next.Do(r)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(answer.Body)
	_ = answer.Body.Close()
	if err != nil {
		return nil, err
	}
	answer.Body = io.NopCloser(bytes.NewReader(body))
	if to, ok := r.Context().Value(recorderKey{}).(*recorder); ok {
		_, operation, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
		to.add(operation, time.Since(begin), answer.Header.Get("X-Amzn-Requestid"), len(body))
	}
	return answer, nil
}

// recorder has the requests of one probe.
type recorder struct {
	mu   sync.Mutex
	last map[string]request
	all  map[string][]time.Duration
}

type recorderKey struct{}

// request is the last request of an operation.
type request struct {
	id   string
	size int // of the answer
}

func newRecorder() *recorder {
	return &recorder{last: map[string]request{}, all: map[string][]time.Duration{}}
}

func (r *recorder) add(operation string, took time.Duration, id string, size int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last[operation] = request{id, size}
	r.all[operation] = append(r.all[operation], took)
}

func (r *recorder) lastOf(operation string) request {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last[operation]
}

// latency returns the median and the longest duration of an operation, "" without one.
func (r *recorder) latency(operation string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	took := slices.Sorted(slices.Values(r.all[operation]))
	if len(took) == 0 {
		return ""
	}
	return fmt.Sprintf("%d/%d ms", took[(len(took)-1)/2].Milliseconds(), took[len(took)-1].Milliseconds())
}

// codeOK is the code of a request that succeeds.
const codeOK = "ok"

// codeOf returns the error code of a request, or the text of another error.
func codeOf(err error) string {
	var known smithy.APIError
	switch {
	case err == nil:
		return codeOK
	case errors.As(err, &known):
		return known.ErrorCode()
	}
	return err.Error()
}
