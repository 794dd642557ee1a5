// Command provider is a web server that registers itself in AWS Cloud Map, with the records and
// attributes that ECS gives to a task in bridge network mode. ECS does this for the tasks of a
// service with service discovery; programs on EC2 do it themselves.
//
//	provider -namespace apps.internal -service orders -address 172.30.0.1:9001
//
// SIGUSR1 stands for a change of its health check: it reports that it is unhealthy, and healthy
// with the next one. At SIGTERM it deregisters, and serves until its clients have noticed.
package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery/types"
)

// ttl is that of the SRV records: clients may use a task for so long after it was deregistered.
// Clusters need up to 5 s (docs/ecs-ec2-lambda.md).
const ttl = 10 * time.Second

// task is one instance of the service.
type task struct {
	namespace, service, address string

	client *servicediscovery.Client
	// id is the instance ID, of the form of a task ID, and serviceID is set by register.
	id, serviceID string
}

func main() {
	var t task
	flag.StringVar(&t.namespace, "namespace", "apps.internal", "name of the Cloud Map namespace, which must exist")
	flag.StringVar(&t.service, "service", "orders", "name of the Cloud Map service, which is created if it is missing")
	flag.StringVar(&t.address, "address", "", "IPv4 address and port to listen on and to register")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := t.run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "provider:", err)
		os.Exit(1)
	}
}

// run serves until ctx ends.
func (t *task) run(ctx context.Context) error {
	cfg, err := config.LoadDefaultConfig(ctx)
	if err != nil {
		return err
	}
	t.client = servicediscovery.NewFromConfig(cfg)
	listener, err := net.Listen("tcp", t.address)
	if err != nil {
		return err
	}
	server := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, "Server address: %s\nServer name: %s\n", t.address, t.service)
	})}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	if err := t.register(ctx, cfg.Region); err != nil {
		return errors.Join(err, server.Close())
	}
	err = t.reportHealth(ctx, failed)
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*ttl)
	defer cancel()
	if err := errors.Join(err, t.deregister(end)); err != nil {
		return errors.Join(err, server.Close())
	}
	select {
	case <-end.Done():
	case <-time.After(ttl):
	}
	return server.Shutdown(end)
}

// register creates the service if it is missing, and the instance.
func (t *task) register(ctx context.Context, region string) error {
	host, port, err := net.SplitHostPort(t.address)
	if err != nil {
		return err
	}
	if err := t.findService(ctx); err != nil {
		return err
	}
	id := make([]byte, 16)
	_, _ = rand.Read(id) // never fails
	t.id = hex.EncodeToString(id)
	out, err := t.client.RegisterInstance(ctx, &servicediscovery.RegisterInstanceInput{
		ServiceId: &t.serviceID, InstanceId: &t.id, CreatorRequestId: &t.id,
		Attributes: map[string]string{
			"AWS_INSTANCE_IPV4": host, "AWS_INSTANCE_PORT": port, "AWS_INIT_HEALTH_STATUS": "HEALTHY",
			"ECS_CLUSTER_NAME": "demo", "ECS_SERVICE_NAME": t.service, "ECS_TASK_DEFINITION_FAMILY": t.service,
			"REGION": region, "AVAILABILITY_ZONE": region + "a",
		},
	})
	if err == nil {
		err = t.wait(ctx, out.OperationId)
	}
	if err == nil {
		fmt.Printf("registered %s in %s\n", t.address, t.service)
	}
	return err
}

// findService sets the ID of the service. In a DNS namespace the service gets SRV records, as ECS
// needs for tasks that share the address of their host.
func (t *task) findService(ctx context.Context) error {
	list, err := t.client.ListNamespaces(ctx, &servicediscovery.ListNamespacesInput{
		Filters: []types.NamespaceFilter{{Name: types.NamespaceFilterNameName, Values: []string{t.namespace}}},
	})
	if err != nil {
		return err
	}
	if len(list.Namespaces) == 0 {
		return fmt.Errorf("there is no namespace %s: create it with aws servicediscovery create-private-dns-namespace or create-http-namespace", t.namespace)
	}
	in := &servicediscovery.CreateServiceInput{
		Name: &t.service, NamespaceId: list.Namespaces[0].Id, HealthCheckCustomConfig: &types.HealthCheckCustomConfig{},
	}
	if list.Namespaces[0].Type != types.NamespaceTypeHttp {
		in.DnsConfig = &types.DnsConfig{
			RoutingPolicy: types.RoutingPolicyMultivalue, DnsRecords: []types.DnsRecord{{Type: types.RecordTypeSrv, TTL: aws.Int64(int64(ttl.Seconds()))}},
		}
	}
	out, err := t.client.CreateService(ctx, in)
	var exists *types.ServiceAlreadyExists
	switch {
	case errors.As(err, &exists):
		t.serviceID = aws.ToString(exists.ServiceId)
	case err != nil:
		return err
	default:
		t.serviceID = aws.ToString(out.Service.Id)
	}
	return nil
}

// reportHealth reports each change of the health until ctx ends or the server fails.
func (t *task) reportHealth(ctx context.Context, failed <-chan error) error {
	changes := make(chan os.Signal, 1)
	signal.Notify(changes, syscall.SIGUSR1)
	defer signal.Stop(changes)
	status := types.CustomHealthStatusHealthy
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return err
		case <-changes:
		}
		if status == types.CustomHealthStatusHealthy {
			status = types.CustomHealthStatusUnhealthy
		} else {
			status = types.CustomHealthStatusHealthy
		}
		_, err := t.client.UpdateInstanceCustomHealthStatus(ctx, &servicediscovery.UpdateInstanceCustomHealthStatusInput{
			ServiceId: &t.serviceID, InstanceId: &t.id, Status: status,
		})
		if err != nil {
			return err
		}
		fmt.Printf("%s is %s\n", t.address, status)
	}
}

func (t *task) deregister(ctx context.Context) error {
	out, err := t.client.DeregisterInstance(ctx, &servicediscovery.DeregisterInstanceInput{ServiceId: &t.serviceID, InstanceId: &t.id})
	if err == nil {
		err = t.wait(ctx, out.OperationId)
	}
	if err == nil {
		fmt.Printf("deregistered %s\n", t.address)
	}
	return err
}

// wait returns when the operation has ended: Cloud Map registers and deregisters later than it
// answers.
func (t *task) wait(ctx context.Context, id *string) error {
	for {
		out, err := t.client.GetOperation(ctx, &servicediscovery.GetOperationInput{OperationId: id})
		if err != nil {
			return err
		}
		switch o := out.Operation; o.Status {
		case types.OperationStatusSuccess:
			return nil
		case types.OperationStatusFail:
			return fmt.Errorf("operation %s: %s: %s", o.Type, aws.ToString(o.ErrorCode), aws.ToString(o.ErrorMessage))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(500 * time.Millisecond):
		}
	}
}
