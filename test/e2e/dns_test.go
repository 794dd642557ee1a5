package e2e

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// dnsStatus matches the status in dig's output: NOERROR, NXDOMAIN.
var dnsStatus = regexp.MustCompile(`status: ([A-Z]+)`)

// lookup is a question for the records of a kind that a name has, and a check of the answer.
type lookup struct {
	name, kind string
	check      func(dnsAnswer) error
}

// dnsAnswer is how a lookup went, and the data of the records, sorted.
type dnsAnswer struct {
	status string
	data   []string
}

// look asks all questions from the client pod, in one process, and returns the errors of the
// checks.
func look(ctx context.Context, c cluster, ns string, all ...lookup) error {
	command := []string{"dig", "+noall", "+comments", "+answer"}
	for _, l := range all {
		command = append(command, l.name, l.kind)
	}
	out, err := ask(ctx, c, ns, command...)
	if err != nil {
		return err
	}
	texts := strings.Split(out, ";; Got answer:")[1:]
	if len(texts) != len(all) {
		return fmt.Errorf("in %s %v has %d answers: %s", c.name, command, len(texts), out)
	}
	var errs []error
	for i, l := range all {
		if err := l.check(parseAnswer(texts[i], l.kind)); err != nil {
			errs = append(errs, fmt.Errorf("in %s %s %s: %w", c.name, l.name, l.kind, err))
		}
	}
	return errors.Join(errs...)
}

// parseAnswer reads one answer in dig's output.
func parseAnswer(text, kind string) (a dnsAnswer) {
	if m := dnsStatus.FindStringSubmatch(text); m != nil {
		a.status = m[1]
	}
	for line := range strings.Lines(text) {
		// "web.demo.svc.clusterset.local. 5 IN A 172.20.1.2"
		if fields := strings.Fields(line); len(fields) > 4 && fields[2] == "IN" && fields[3] == kind {
			a.data = append(a.data, strings.Join(fields[4:], " "))
		}
	}
	slices.Sort(a.data)
	return a
}

// records is a lookup that has exactly this data. Without data, the name must exist without such
// records.
func records(name, kind string, want ...string) lookup {
	slices.Sort(want)
	return lookup{name, kind, func(a dnsAnswer) error {
		if d := cmp.Diff(want, a.data); d != "" || a.status != "NOERROR" {
			return fmt.Errorf("%s, data (-want +got):\n%s", a.status, d)
		}
		return nil
	}}
}

// targets is a lookup of SRV records with exactly these "port target", with any priority and
// weight.
func targets(name string, want ...string) lookup {
	l := records(name, "SRV", want...)
	same := l.check
	l.check = func(a dnsAnswer) error {
		for i, data := range a.data {
			if fields := strings.Fields(data); len(fields) == 4 {
				a.data[i] = fields[2] + " " + fields[3]
			}
		}
		slices.Sort(a.data)
		return same(a)
	}
	return l
}

// finds checks that the answer to a question has exactly this data.
func finds(ctx context.Context, c cluster, ns, name, kind string, want ...string) error {
	return look(ctx, c, ns, records(name, kind, want...))
}

// unknown checks that names do not exist, for any record type.
func unknown(ctx context.Context, c cluster, ns string, names ...string) error {
	var all []lookup
	for _, name := range names {
		for _, kind := range []string{"A", "AAAA", "SRV"} {
			all = append(all, lookup{name, kind, func(a dnsAnswer) error {
				if a.status != "NXDOMAIN" {
					return fmt.Errorf("%s %v, want NXDOMAIN", a.status, a.data)
				}
				return nil
			}})
		}
	}
	return look(ctx, c, ns, all...)
}

// TestDNSOfClusterSetIP is section 2.3 of the specification: A and AAAA with the clusterset IPs,
// SRV for every named port, with or without endpoints, and nothing that leads to one cluster.
func TestDNSOfClusterSetIP(t *testing.T) {
	t.Parallel()
	cls1, cls2 := installed(t)
	ns := namespace(t, cls1, cls2)
	svc := service(ns, "web")
	dualStack(svc, nil)
	svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: "stats", Port: 9125, Protocol: corev1.ProtocolUDP})
	create(t, cls1, svc)
	export(t, cls1, ns, "web")
	startClient(t, cls2, ns)
	var ips []string
	eventually(t, soon, func() error {
		imp, err := serviceImport(t.Context(), cls2, ns, "web")
		if err == nil && len(imp.Spec.IPs) != 2 {
			err = fmt.Errorf("the import has IPs %v, want two", imp.Spec.IPs)
		}
		if err == nil {
			ips = imp.Spec.IPs
		}
		return err
	})
	answersAll := func() error {
		return look(t.Context(), cls2, ns,
			records(fqdn(ns, "web"), "A", ips[0]),
			records(fqdn(ns, "web"), "AAAA", ips[1]),
			targets(fqdn(ns, "web", "_http", "_tcp"), "80 "+fqdn(ns, "web")),
			targets(fqdn(ns, "web", "_stats", "_udp"), "9125 "+fqdn(ns, "web")))
	}
	eventually(t, soon, answersAll)
	create(t, cls1, endpoints(ns, "web", "by-hand", svc.Spec.Ports, endpoint("10.10.250.1", "a")))
	eventually(t, soon, func() error {
		got, err := imported(t.Context(), cls2, ns, "web", "cls1", true)
		if err == nil && len(got) != 1 {
			err = fmt.Errorf("cls2 has imported %v, want one endpoint", got)
		}
		return err
	})
	if err := answersAll(); err != nil {
		t.Error("with an endpoint:", err)
	}
	if err := unknown(t.Context(), cls2, ns,
		fqdn(ns, "web", "cls1"), // MUST NOT be there
		fqdn(ns, "web", "_http", "_udp"),
		fqdn(ns, "web", "_nothing", "_tcp"),
		fqdn(ns, "nothing"),
	); err != nil {
		t.Error(err)
	}
}

// TestDNSOfHeadless is section 2.4 of the specification: A and AAAA of the ready endpoints of all
// clusters, names of single pods by hostname and cluster, an SRV record for every ready endpoint
// and port, NXDOMAIN when none is ready.
func TestDNSOfHeadless(t *testing.T) {
	t.Parallel()
	cls1, cls2 := installed(t)
	ns := namespace(t, cls1, cls2)
	ports := []corev1.ServicePort{{Name: "http", Port: 80}, {Name: "peer", Port: 7000}}
	for _, c := range []cluster{cls1, cls2} {
		svc := service(ns, "db")
		svc.Spec.ClusterIP = corev1.ClusterIPNone
		dualStack(svc, nil)
		svc.Spec.Ports = ports
		create(t, c, svc)
		export(t, c, ns, "db")
		startClient(t, c, ns)
	}
	notReady := endpoint("10.10.250.9", "c")
	notReady.Conditions.Ready = new(false)
	v4 := endpoints(ns, "db", "v4", ports, endpoint("10.10.250.1", "a"), endpoint("10.10.250.2", ""), notReady)
	create(t, cls1, v4)
	create(t, cls1, endpoints(ns, "db", "v6", ports, endpoint("fd00:10:10::fa01", "a")))
	create(t, cls2, endpoints(ns, "db", "v4", ports, endpoint("10.12.250.1", "a")))
	targetsOf := func(port, number string) lookup {
		return targets(fqdn(ns, "db", port, "_tcp"),
			number+fqdn(ns, "db", "a", "cls1"), number+fqdn(ns, "db", "10-10-250-2", "cls1"), number+fqdn(ns, "db", "a", "cls2"))
	}
	for _, c := range []cluster{cls1, cls2} {
		// Asked too early, CoreDNS would remember that there is no such name.
		eventually(t, soon, func() error {
			got, err := imported(t.Context(), c, ns, "db", "", true)
			if err == nil && len(got) != 4 {
				err = fmt.Errorf("%s has imported %v as ready, want four", c.name, got)
			}
			return err
		})
		eventually(t, soon, func() error {
			return look(t.Context(), c, ns,
				records(fqdn(ns, "db"), "A", "10.10.250.1", "10.10.250.2", "10.12.250.1"),
				records(fqdn(ns, "db"), "AAAA", "fd00:10:10::fa01"),
				records(fqdn(ns, "db", "a", "cls1"), "A", "10.10.250.1"),
				records(fqdn(ns, "db", "a", "cls1"), "AAAA", "fd00:10:10::fa01"),
				records(fqdn(ns, "db", "a", "cls2"), "A", "10.12.250.1"),
				records(fqdn(ns, "db", "a", "cls2"), "AAAA"),
				records(fqdn(ns, "db", "10-10-250-2", "cls1"), "A", "10.10.250.2"),
				targetsOf("_http", "80 "), targetsOf("_peer", "7000 "))
		})
		if err := unknown(t.Context(), c, ns, fqdn(ns, "db", "cls1"), fqdn(ns, "db", "c", "cls1"), fqdn(ns, "db", "b", "cls2")); err != nil {
			t.Error(err)
		}
	}
	// Nothing is ready any more: in cls1 there are endpoints that are not, in cls2 there are none.
	for _, slice := range []string{"v4", "v6"} {
		kubectl(t, cls1, "-n", ns, "patch", "endpointslice", slice, "--type=json", "-p",
			`[{"op":"add","path":"/endpoints/0/conditions","value":{"ready":false}}]`)
	}
	kubectl(t, cls1, "-n", ns, "patch", "endpointslice", "v4", "--type=json", "-p", `[{"op":"remove","path":"/endpoints/1"}]`)
	kubectl(t, cls2, "-n", ns, "delete", "endpointslice", "v4")
	for _, c := range []cluster{cls1, cls2} {
		eventually(t, soon, func() error {
			return unknown(t.Context(), c, ns, fqdn(ns, "db"), fqdn(ns, "db", "_http", "_tcp"), fqdn(ns, "db", "a", "cls1"))
		})
		if _, err := serviceImport(t.Context(), c, ns, "db"); err != nil {
			t.Error("the import must stay:", err)
		}
	}
}

// TestDNSLeavesTheClusterAlone: the zone has a version record, and answers for cluster.local do not
// change.
func TestDNSLeavesTheClusterAlone(t *testing.T) {
	t.Parallel()
	cls1, cls2 := installed(t)
	ns := namespace(t, cls1, cls2)
	create(t, cls1, service(ns, "web"))
	create(t, cls1, endpoints(ns, "web", "by-hand", service(ns, "web").Spec.Ports, endpoint("10.10.250.1", "a")))
	var svc corev1.Service
	if err := cls1.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: "web"}, &svc); err != nil {
		t.Fatal(err)
	}
	local := "web." + ns + ".svc.cluster.local."
	for _, c := range []cluster{cls1, cls2} {
		startClient(t, c, ns)
	}
	asBefore := func() error {
		return errors.Join(
			look(t.Context(), cls1, ns, records(local, "A", svc.Spec.ClusterIP), records("a."+local, "A", "10.10.250.1"), targets("_http._tcp."+local, "80 "+local)),
			unknown(t.Context(), cls2, ns, local))
	}
	eventually(t, soon, asBefore)
	export(t, cls1, ns, "web")
	for _, c := range []cluster{cls1, cls2} {
		var ip string
		eventually(t, soon, func() (err error) { ip, err = importIP(t.Context(), c, ns, "web"); return err })
		eventually(t, soon, func() error { return finds(t.Context(), c, ns, fqdn(ns, "web"), "A", ip) })
		// CoreDNS answers with the version of the cluster-local specification (docs/api.md).
		if err := finds(t.Context(), c, ns, "dns-version.clusterset.local.", "TXT", `"1.1.0"`); err != nil {
			t.Error(err)
		}
	}
	if err := asBefore(); err != nil {
		t.Error("after the export:", err)
	}
}
