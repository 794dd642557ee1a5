// Command consumer is a program outside of Kubernetes that uses a Service which clusters export: it
// finds the endpoints in AWS Cloud Map, and sends each an HTTP request.
//
//	consumer address web.demo 80      the addresses of a DNS name, with a port that the program knows
//	consumer srv web-ports.demo       the SRV records of a DNS name, which have the ports
//	consumer discover demo web        DiscoverInstances: the healthy instances of a service
//
// In the VPC of the namespace the names resolve with the resolver of the VPC; -dns names another
// server.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery/types"
)

func main() {
	server := flag.String("dns", "", "address and port of the DNS server; default: that of the system")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	err := run(ctx, resolver(*server), flag.Args(), os.Stdout)
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, "consumer:", err)
		os.Exit(1)
	}
}

// resolver asks the server, or the one of the system.
func resolver(server string) *net.Resolver {
	if server == "" {
		return net.DefaultResolver
	}
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, server)
	}}
}

// run prints a line for each endpoint, sorted.
func run(ctx context.Context, dns *net.Resolver, args []string, out io.Writer) error {
	endpoints, err := find(ctx, dns, append(args, "", "", ""))
	if err != nil {
		return err
	}
	if len(endpoints) == 0 {
		return errors.New("the service has no endpoints")
	}
	slices.Sort(endpoints)
	for _, endpoint := range endpoints {
		name, err := request(ctx, endpoint)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%s answers: %s\n", endpoint, name)
	}
	return nil
}

// find returns the endpoints of a service, as host:port.
func find(ctx context.Context, dns *net.Resolver, args []string) ([]string, error) {
	switch args[0] {
	case "address":
		return addresses(ctx, dns, args[1], args[2])
	case "srv":
		return records(ctx, dns, args[1])
	case "discover":
		return instances(ctx, args[1], args[2])
	}
	return nil, errors.New("the first argument must be address, srv or discover: for example consumer srv web-ports.demo")
}

func addresses(ctx context.Context, dns *net.Resolver, name, port string) (endpoints []string, err error) {
	hosts, err := dns.LookupHost(ctx, name+".") // with the final dot no search domain is tried
	for _, host := range hosts {
		endpoints = append(endpoints, net.JoinHostPort(host, port))
	}
	return endpoints, err
}

func records(ctx context.Context, dns *net.Resolver, name string) (endpoints []string, err error) {
	_, found, err := dns.LookupSRV(ctx, "", "", name+".")
	if err != nil {
		return nil, err
	}
	for _, record := range found {
		of, err := addresses(ctx, dns, strings.TrimSuffix(record.Target, "."), strconv.Itoa(int(record.Port)))
		if err != nil {
			return nil, err
		}
		endpoints = append(endpoints, of...)
	}
	return endpoints, nil
}

func instances(ctx context.Context, namespace, service string) (endpoints []string, err error) {
	cfg, err := config.LoadDefaultConfig(ctx)
	if err != nil {
		return nil, err
	}
	out, err := servicediscovery.NewFromConfig(cfg).DiscoverInstances(ctx, &servicediscovery.DiscoverInstancesInput{
		NamespaceName: &namespace, ServiceName: &service, HealthStatus: types.HealthStatusFilterHealthy, MaxResults: aws.Int32(1000),
	})
	if err != nil {
		return nil, err
	}
	for _, instance := range out.Instances {
		endpoints = append(endpoints, net.JoinHostPort(instance.Attributes["AWS_INSTANCE_IPV4"], instance.Attributes["AWS_INSTANCE_PORT"]))
	}
	return endpoints, nil
}

// request returns the name of the server that answers.
func request(ctx context.Context, endpoint string) (string, error) {
	// without a proxy: endpoints are in the same network
	client := http.Client{Transport: &http.Transport{}, Timeout: 5 * time.Second}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+endpoint+"/", nil)
	if err != nil {
		return "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if name, ok := strings.CutPrefix(lines.Text(), "Server name: "); ok {
			return name, nil
		}
	}
	return "", fmt.Errorf("%s answers %s, and does not say its name", endpoint, resp.Status)
}
