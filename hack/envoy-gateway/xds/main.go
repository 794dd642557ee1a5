// The program xds asks Envoy Gateway, as an Envoy does, for the configuration of the Envoys of a
// Gateway. For each host of a route it prints the endpoints that the requests are sent to, or the
// status of a response without one: a line of JSON, {"HOST": ["ENDPOINT", …]}, for each change.
//
//	xds -address 127.0.0.1:18000 -certs DIR -gateway NAMESPACE/NAME
package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/proto"
)

// The types of the resources that are asked for.
const (
	clusterType  = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	endpointType = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
	routeType    = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"
)

func main() {
	address := flag.String("address", "127.0.0.1:18000", "the address of the xDS server")
	certs := flag.String("certs", "", "the directory with ca.crt, and tls.crt and tls.key of an Envoy")
	gateway := flag.String("gateway", "", "NAMESPACE/NAME of the Gateway")
	flag.Parse()
	if err := run(*address, *certs, *gateway); err != nil {
		log.Fatal(err)
	}
}

func run(address, certs, gateway string) error {
	pair, err := tls.LoadX509KeyPair(filepath.Join(certs, "tls.crt"), filepath.Join(certs, "tls.key"))
	if err != nil {
		return err
	}
	ca, err := os.ReadFile(filepath.Join(certs, "ca.crt"))
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{pair}, RootCAs: roots, ServerName: "envoy-gateway",
	})))
	if err != nil {
		return err
	}
	defer conn.Close()
	client := discoveryv3.NewAggregatedDiscoveryServiceClient(conn)
	stream, err := client.StreamAggregatedResources(context.Background(), grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	node := &corev3.Node{Id: "test-" + strconv.FormatInt(time.Now().UnixNano(), 36), Cluster: gateway}
	for _, t := range []string{clusterType, endpointType, routeType} {
		if err := stream.Send(&discoveryv3.DiscoveryRequest{Node: node, TypeUrl: t}); err != nil {
			return err
		}
	}
	return follow(stream, node)
}

// follow acknowledges the responses of stream, and prints the configuration after each one.
func follow(stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient, node *corev3.Node) error {
	var c configuration
	out := json.NewEncoder(os.Stdout)
	for {
		response, err := stream.Recv()
		if err != nil {
			return err
		}
		if err := c.apply(response); err != nil {
			return err
		}
		err = errors.Join(out.Encode(c.answers()), stream.Send(&discoveryv3.DiscoveryRequest{
			Node: node, TypeUrl: response.TypeUrl, VersionInfo: response.VersionInfo, ResponseNonce: response.Nonce,
		}))
		if err != nil {
			return err
		}
	}
}

// configuration is the configuration of an Envoy.
type configuration struct {
	clusters    []*clusterv3.Cluster
	assignments []*endpointv3.ClusterLoadAssignment
	routes      []*routev3.RouteConfiguration
}

// apply replaces the resources of the type of the response.
func (c *configuration) apply(response *discoveryv3.DiscoveryResponse) (err error) {
	switch response.TypeUrl {
	case clusterType:
		c.clusters, err = resources[*clusterv3.Cluster](response)
	case endpointType:
		c.assignments, err = resources[*endpointv3.ClusterLoadAssignment](response)
	case routeType:
		c.routes, err = resources[*routev3.RouteConfiguration](response)
	}
	return err
}

func resources[T proto.Message](response *discoveryv3.DiscoveryResponse) ([]T, error) {
	var out []T
	for _, packed := range response.Resources {
		m, err := packed.UnmarshalNew()
		if err != nil {
			return nil, err
		}
		out = append(out, m.(T))
	}
	return out, nil
}

// answers returns the endpoints, or the status, of the first route of each host.
func (c *configuration) answers() map[string][]string {
	out := map[string][]string{}
	for _, config := range c.routes {
		for _, host := range config.VirtualHosts {
			for _, domain := range host.Domains {
				if len(host.Routes) > 0 {
					out[domain] = c.routed(host.Routes[0])
				}
			}
		}
	}
	return out
}

func (c *configuration) routed(route *routev3.Route) []string {
	if direct := route.GetDirectResponse(); direct != nil {
		return []string{fmt.Sprintf("status %d", direct.Status)}
	}
	if name := route.GetRoute().GetCluster(); name != "" {
		return c.endpoints(name)
	}
	var out []string
	for _, w := range route.GetRoute().GetWeightedClusters().GetClusters() {
		for _, endpoint := range c.endpoints(w.Name) {
			out = append(out, fmt.Sprintf("%s weight %d", endpoint, w.Weight.GetValue()))
		}
	}
	slices.Sort(out)
	return out
}

// endpoints returns the endpoints of a cluster of Envoy that it may send requests to, each with the
// weight of its backend if the backends have several.
func (c *configuration) endpoints(name string) []string {
	i := slices.IndexFunc(c.clusters, func(cluster *clusterv3.Cluster) bool { return cluster.Name == name })
	if i < 0 {
		return []string{"no cluster " + name}
	}
	assignment := c.clusters[i].LoadAssignment
	for _, a := range c.assignments {
		if a.ClusterName == cmp.Or(c.clusters[i].GetEdsClusterConfig().GetServiceName(), name) {
			assignment = a
		}
	}
	weights := map[uint32]bool{}
	for _, locality := range assignment.GetEndpoints() {
		weights[locality.LoadBalancingWeight.GetValue()] = true
	}
	out := []string{}
	for _, locality := range assignment.GetEndpoints() {
		for _, endpoint := range locality.LbEndpoints {
			if endpoint.HealthStatus != corev3.HealthStatus_UNKNOWN && endpoint.HealthStatus != corev3.HealthStatus_HEALTHY {
				continue
			}
			socket := endpoint.GetEndpoint().GetAddress().GetSocketAddress()
			text := net.JoinHostPort(socket.GetAddress(), strconv.FormatUint(uint64(socket.GetPortValue()), 10))
			if len(weights) > 1 {
				text += fmt.Sprintf(" weight %d", locality.LoadBalancingWeight.GetValue())
			}
			out = append(out, text)
		}
	}
	slices.Sort(out)
	return out
}
