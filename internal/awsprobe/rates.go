package awsprobe

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
)

// ratedOperations are the operations whose rates are assumed. Those of the data plane are
// documented.
var ratedOperations = []string{"ListNamespaces", "ListServices", "ListInstances", "GetService", "GetOperation", "RegisterInstance"}

// rateTime is how long each operation is asked at twice its assumed rate.
const rateTime = 5 * time.Second

// requestsAt returns the number of requests that empty a bucket and exceed its rate twofold.
func requestsAt(r api.Rate) int { return r.Burst + int(2*r.PerSecond*rateTime.Seconds()) }

func rateRequests() (total int) {
	for _, operation := range ratedOperations {
		total += requestsAt(api.DefaultRates()[operation])
	}
	return total
}

// probeRates is probe 7. Package api keeps to the assumed rates.
func probeRates(ctx context.Context, p *prober) error {
	s, err := p.createService(ctx, "rates")
	if err != nil {
		return err
	}
	operation, err := p.api.RegisterInstance(ctx, s.ID, api.Instance{ID: "a", Attributes: map[string]string{}})
	if err != nil {
		return err
	}
	ask := map[string]func() error{
		"ListNamespaces": func() error {
			_, err := p.sdk.ListNamespaces(ctx, &servicediscovery.ListNamespacesInput{})
			return err
		},
		"ListServices": func() error {
			_, err := p.sdk.ListServices(ctx, &servicediscovery.ListServicesInput{})
			return err
		},
		"ListInstances": func() error {
			_, err := p.sdk.ListInstances(ctx, &servicediscovery.ListInstancesInput{ServiceId: &s.ID})
			return err
		},
		"GetService": func() error {
			_, err := p.sdk.GetService(ctx, &servicediscovery.GetServiceInput{Id: &s.ID})
			return err
		},
		"GetOperation": func() error {
			_, err := p.sdk.GetOperation(ctx, &servicediscovery.GetOperationInput{OperationId: &operation})
			return err
		},
		"RegisterInstance": func() error {
			_, err := p.sdk.RegisterInstance(ctx, &servicediscovery.RegisterInstanceInput{
				ServiceId: &s.ID, InstanceId: aws.String("a"), Attributes: map[string]string{}})
			return err
		},
	}
	for _, name := range ratedOperations {
		assumed := api.DefaultRates()[name]
		total := requestsAt(assumed)
		accepted, code := flood(ctx, total, ask[name])
		got := fmt.Sprintf("%d of %d in %s", accepted, total, rateTime)
		if code != "" {
			got += ", the others " + code
		}
		p.row(name, fmt.Sprintf("%s above its assumed rate of %g/s with a burst of %d", name, assumed.PerSecond, assumed.Burst),
			fmt.Sprintf("%d accepted", assumed.Burst+int(assumed.PerSecond*rateTime.Seconds())), got)
	}
	return ctx.Err()
}

// flood makes requests evenly within rateTime, and returns how many were accepted and a code of the
// throttled ones. A request that is refused for another reason counts as accepted.
func flood(ctx context.Context, total int, ask func() error) (accepted int, code string) {
	var mu sync.Mutex
	var all sync.WaitGroup
	for range total {
		all.Go(func() {
			err := ask()
			mu.Lock()
			defer mu.Unlock()
			if api.IsThrottled(err) {
				code = codeOf(err)
			} else if !errors.Is(err, context.Canceled) {
				accepted++
			}
		})
		pause(ctx, rateTime/time.Duration(total))
	}
	all.Wait()
	return accepted, code
}
