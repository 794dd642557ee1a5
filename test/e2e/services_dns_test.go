package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/clusterset"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/tutorial"
)

// TestInstanceDNS asks Cloud Map's DNS from outside of the clusters for pods that both export, with
// the shipped policies enforced. It has exactly the ready ones while pods become unready and ready,
// are scaled, their cluster is drained, and their controller is down, the latter as
// --stale-instances says. It logs the times from a change to the answers, for which TestDNSPace has
// the bar. The attributes that one export names filter DiscoverInstances.
func TestInstanceDNS(t *testing.T) {
	onlyOn(t, clusterset.CloudMap)
	cls1, cls2 := installed(t)
	for _, c := range []cluster{cls1, cls2} {
		startRollout(t, c, "--instance-dns-vpc=vpc-0a1b2c3d", "--unready-instances=unhealthy", "--heartbeat-interval=2s", "--stale-after=10s")
	}
	ns := namespace(t, cls1, cls2)
	web, admin := service(ns, "web"), service(ns, "admin")
	admin.Spec.Ports = append(admin.Spec.Ports, corev1.ServicePort{Name: "metrics", Port: 9090, TargetPort: intstr.FromInt32(9090)})
	// two ports each: with 8 of them DNS answers all
	for c, replicas := range map[cluster]int{cls1: 2, cls2: 1} {
		kubectl(t, c, "annotate", "namespace", ns, mcs.AnnotationInstanceDNS+"=auto")
		apply(t, c, servers(c, ns, "web", replicas))
		for _, svc := range []*corev1.Service{web, admin} {
			svc := svc.DeepCopy()
			svc.Spec.Selector = map[string]string{"app": "web"}
			create(t, c, svc)
		}
	}
	// An earlier process would create the namespace of Cloud Map without DNS.
	rolledOut(t, cls1, cls2)
	for _, c := range []cluster{cls1, cls2} {
		export(t, c, ns, web.Name)
		export(t, c, ns, admin.Name)
	}
	kubectl(t, cls1, "-n", ns, "annotate", "serviceexport", "web", mcs.AnnotationInstanceAttributes+"=team=payments,at=$(node)")
	startClient(t, cls1, ns)

	// follow waits until n pods are ready in the EndpointSlices of the clusters and DNS has exactly
	// these. It measures from began, or from the last look at which the EndpointSlices had others,
	// so that the times are upper bounds.
	follow := func(after string, began time.Time, n int, in ...cluster) {
		t.Helper()
		right := map[string]time.Duration{}
		eventually(t, started, func() error {
			now := time.Now()
			var pods []string
			for _, c := range in {
				ready, err := podIPs(t.Context(), c, ns, "web")
				if err != nil {
					return err
				}
				pods = append(pods, ready...)
			}
			if len(pods) != n {
				began = now
				return fmt.Errorf("pods %v are ready, want %d", pods, n)
			}
			addresses := answersARecords(t.Context(), ns, "web", pods)
			if _, known := right["A"]; !known && addresses == nil {
				right["A"] = time.Since(began)
			}
			ports := answersSRVRecords(t.Context(), ns, "admin", pods, "80", "9090")
			if _, known := right["SRV"]; !known && ports == nil {
				right["SRV"] = time.Since(began)
			}
			return errors.Join(addresses, ports)
		})
		t.Logf("%s: DNS is right after %s (A) and %s (SRV)", after, right["A"].Round(time.Millisecond), right["SRV"].Round(time.Millisecond))
	}
	follow("exported by two clusters", time.Now(), 3, cls1, cls2)
	eventually(t, soon, func() error { return discoversByAttributes(t.Context(), ns, cls1) })

	pods, err := podIPs(t.Context(), cls1, ns, "web")
	if err != nil {
		t.Fatal(err)
	}
	for _, ready := range []bool{false, true} {
		began := time.Now()
		if _, err := ask(t.Context(), cls1, ns, "curl", "-s", "-X", "POST", fmt.Sprintf("http://%s/ready?ok=%t", pods[0], ready)); err != nil {
			t.Fatal(err)
		}
		follow(fmt.Sprintf("a pod is ready: %t", ready), began, map[bool]int{false: 2, true: 3}[ready], cls1, cls2)
	}
	for _, replicas := range []int{3, 1, 2} {
		began := time.Now()
		kubectl(t, cls1, "-n", ns, "scale", "deployment/cls1-web", fmt.Sprintf("--replicas=%d", replicas))
		follow(fmt.Sprintf("scaled to %d pods", replicas), began, replicas+1, cls1, cls2)
	}

	t.Cleanup(func() { _, _ = plugin(context.Background(), 0, "undrain --context cls1") })
	began := time.Now()
	says(t, 0, "drain --context cls1", "cls1: the cluster is drained by 100%")
	follow("drained, with the start of the plugin", began, 1, cls2)
	eventually(t, soon, func() error {
		return errors.Join(hasHealth(t.Context(), ns, "UNHEALTHY", cls1), hasHealth(t.Context(), ns, "HEALTHY", cls2))
	})
	began = time.Now()
	says(t, 0, "undrain --context cls1", "cls1: the cluster is not drained")
	follow("undrained, with the start of the plugin", began, 3, cls1, cls2)
	for _, c := range []cluster{cls1, cls2} {
		says(t, 0, "check --context "+c.name, "no request was denied in the last minute")
	}

	if testing.Short() {
		return // The rest waits for a stale cluster twice (80 s): NIGHTLY=1 runs it.
	}
	// The last endpoints of a cluster that is stale stay, until its controller is back.
	last, err := podIPs(t.Context(), cls1, ns, "web")
	if err != nil {
		t.Fatal(err)
	}
	others, err := podIPs(t.Context(), cls2, ns, "web")
	if err != nil {
		t.Fatal(err)
	}
	restart := killController(t, cls1)
	kubectl(t, cls1, "-n", ns, "scale", "deployment/cls1-web", "--replicas=1")
	eventually(t, started, func() error { return staleIs(t.Context(), cls2, ns, "web", "True Withdrawn", "cls1") })
	always(t, quiet, func() error { return answersARecords(t.Context(), ns, "web", slices.Concat(last, others)) })
	began = time.Now()
	restart()
	follow("the controller is back, with its start", began, 2, cls1, cls2)

	// With --stale-instances=unhealthy another cluster makes them unhealthy, and the cluster itself
	// healthy again when it is back.
	addArgs(t, cls2, "--stale-instances=unhealthy")
	began = time.Now()
	restart = killController(t, cls1)
	follow("the controller is killed, with --stale-after=10s", began, 1, cls2)
	eventually(t, soon, func() error {
		return errors.Join(hasHealth(t.Context(), ns, "UNHEALTHY", cls1), hasHealth(t.Context(), ns, "HEALTHY", cls2))
	})
	began = time.Now()
	restart()
	follow("the controller is back, with its start", began, 2, cls1, cls2)
	says(t, 0, "check --context cls2", "no request was denied in the last minute")
}

// lookUp asks the DNS of cloudmap-local for the records of a name.
func lookUp(ctx context.Context, network, name string, qtype uint16) ([]dns.RR, error) {
	client := dns.Client{Net: network, Timeout: 5 * time.Second}
	query := new(dns.Msg).SetQuestion(dns.Fqdn(name), qtype).SetEdns0(dns.DefaultMsgSize, false)
	reply, _, err := client.ExchangeContext(ctx, query, clusterset.DNSAddress)
	if err != nil {
		return nil, fmt.Errorf("asking for %s %s by %s: %w", dns.TypeToString[qtype], name, network, err)
	}
	return reply.Answer, nil
}

// answersARecords checks that the name of a service has exactly the addresses, by UDP and TCP.
func answersARecords(ctx context.Context, ns, name string, want []string) error {
	for _, network := range []string{"udp", "tcp"} {
		records, err := lookUp(ctx, network, name+"."+ns, dns.TypeA)
		if err != nil {
			return err
		}
		var got []string
		for _, rr := range records {
			if a, ok := rr.(*dns.A); ok {
				got = append(got, a.A.String())
			}
		}
		if err := sameSet(name+"."+ns+" by "+network, got, want); err != nil {
			return err
		}
	}
	return nil
}

// answersSRVRecords checks that the name of a service has exactly the addresses with each of the
// ports.
func answersSRVRecords(ctx context.Context, ns, name string, addresses []string, ports ...string) error {
	var got, want []string
	for _, address := range addresses {
		for _, port := range ports {
			want = append(want, net.JoinHostPort(address, port))
		}
	}
	records, err := lookUp(ctx, "udp", name+"."+ns, dns.TypeSRV)
	if err != nil {
		return err
	}
	for _, rr := range records {
		srv, ok := rr.(*dns.SRV)
		if !ok {
			continue
		}
		targets, err := lookUp(ctx, "udp", srv.Target, dns.TypeA)
		if err != nil {
			return err
		}
		for _, rr := range targets {
			if a, ok := rr.(*dns.A); ok {
				got = append(got, net.JoinHostPort(a.A.String(), fmt.Sprint(srv.Port)))
			}
		}
	}
	return sameSet(name+"."+ns, got, want)
}

// sameSet compares answers for a name. Route 53 returns at most 8 of them.
func sameSet(name string, got, want []string) error {
	got, want = slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))
	if !slices.Equal(got, want) {
		return fmt.Errorf("%s is %v, want %v", name, got, want)
	}
	return nil
}

// hasHealth checks that the instances of Service web with this health are the ready pods of a
// cluster.
func hasHealth(ctx context.Context, ns, health string, of cluster) error {
	want, err := podIPs(ctx, of, ns, "web")
	if err != nil {
		return err
	}
	out, err := suite.Output(ctx, tutorial.AWS("discover-instances --namespace-name "+ns+" --service-name web --health-status "+health+
		" --query Instances[].Attributes.AWS_INSTANCE_IPV4 --output text"))
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return sameSet(health, strings.Fields(out), want)
}

// discoversByAttributes checks that DiscoverInstances, called with the AWS CLI and the attributes
// of the export's annotation, returns the ready pods of its cluster alone, with their nodes.
func discoversByAttributes(ctx context.Context, ns string, of cluster) error {
	var list discoveryv1.EndpointSliceList
	if err := of.List(ctx, &list, client.InNamespace(ns), client.MatchingLabels{discoveryv1.LabelServiceName: "web"}); err != nil {
		return err
	}
	byFilter := map[string][]string{} // --query-parameters to address and node
	for _, slice := range list.Items {
		for _, e := range slice.Endpoints {
			if *e.Conditions.Ready && slice.AddressType == discoveryv1.AddressTypeIPv4 {
				for _, filter := range []string{"team=payments", "team=payments,at=" + *e.NodeName} {
					byFilter[filter] = append(byFilter[filter], e.Addresses[0]+"\t"+*e.NodeName)
				}
			}
		}
	}
	byFilter["team=payments,at=elsewhere"] = nil
	for filter, want := range byFilter {
		out, err := suite.Output(ctx, tutorial.AWS("discover-instances --namespace-name "+ns+" --service-name web --query-parameters "+filter+
			" --query 'Instances[].Attributes.[AWS_INSTANCE_IPV4,at]' --output text"))
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		if err := sameSet(filter, slices.DeleteFunc(strings.Split(out, "\n"), func(line string) bool { return line == "" }), want); err != nil {
			return err
		}
	}
	return nil
}
