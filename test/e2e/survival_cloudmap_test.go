package e2e

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/credentials"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/names"
	cloudmapapi "github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/clusterset"
)

// controlNamespace is the Cloud Map namespace with the records of the clusterset.
var controlNamespace = format.ControlNamespace(clusterset.ClusterSetID)

// cloudMapContent reads and changes Cloud Map as an administrator.
type cloudMapContent struct {
	api *cloudmapapi.Client
	// pages are the first parts of the pages with the exports of the scenario.
	pages []string
}

// openContent returns the content of the registry. Half of the services are exported, as in a
// restored backup.
func (s *survival) openContent(t *testing.T) content {
	t.Helper()
	if suite.Registry == clusterset.Etcd {
		return newEtcdContent(t)
	}
	return &cloudMapContent{api: cloudMapAs(t, "AKIDLOCAL", "local")}
}

// cloudMapAs returns a client with the credentials of a user.
func cloudMapAs(t *testing.T, key, secret string) *cloudmapapi.Client {
	t.Helper()
	api, err := cloudmapapi.NewClient(t.Context(), cloudmapapi.Config{
		Region: homeRegion, Endpoint: clusterset.Endpoint, Insecure: true, Credentials: credentials.NewStaticCredentialsProvider(key, secret, ""),
	})
	if err != nil {
		t.Fatal(err)
	}
	return api
}

// complete implements content.
func (c *cloudMapContent) complete(ctx context.Context, cluster string) error {
	members, err := c.instances(ctx, format.MembersService)
	if err != nil {
		return err
	}
	catalog, err := c.instances(ctx, format.CatalogName(cluster))
	if err != nil {
		return err
	}
	announced := announcedPages(members[cluster])
	for _, page := range c.pages {
		if _, ok := catalog[page]; !ok || !slices.Contains(announced, page) {
			return fmt.Errorf("the record of %s announces the pages %v, and its catalog has %v; page %s is missing", cluster, announced,
				slices.Sorted(maps.Keys(catalog)), page)
		}
	}
	return nil
}

// announcedPages returns the IDs of the first parts of the pages that a member record announces.
func announcedPages(record cloudmapapi.Instance) (ids []string) {
	for _, page := range strings.Split(record.Attributes[format.AttrPages], ",") {
		if name, _, ok := strings.Cut(page, "."); ok {
			ids = append(ids, "page-"+name+"-0")
		}
	}
	return ids
}

// instances returns the instances of a service of the clusterset by ID.
func (c *cloudMapContent) instances(ctx context.Context, service string) (map[string]cloudmapapi.Instance, error) {
	list, _, err := c.api.DiscoverInstances(ctx, controlNamespace, service, nil)
	if err != nil {
		return nil, fmt.Errorf("reading the service %s: %w", service, err)
	}
	out := map[string]cloudmapapi.Instance{}
	for _, i := range list {
		out[i.ID] = i
	}
	return out, nil
}

// services returns the namespace of the clusterset and its services by name.
func (c *cloudMapContent) services(ctx context.Context) (cloudmapapi.Namespace, map[string]cloudmapapi.Service, error) {
	namespaces, err := c.api.ListNamespaces(ctx)
	if err != nil {
		return cloudmapapi.Namespace{}, nil, err
	}
	ns, ok := namespaces[controlNamespace]
	if !ok {
		return ns, nil, fmt.Errorf("there is no namespace %s", controlNamespace)
	}
	services, err := c.api.ListServices(ctx, ns)
	return ns, services, err
}

// deregister removes instances of services whose IDs accept returns true for.
func (c *cloudMapContent) deregister(t *testing.T, accept func(service, instance string) bool) {
	t.Helper()
	_, services, err := c.services(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for name, service := range services {
		instances, err := c.instances(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		for id := range instances {
			if !accept(name, id) {
				continue
			}
			if err := c.api.DeregisterInstance(t.Context(), service.ID, id); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// deleteNamespace deletes the clusterset's namespace with everything in it, while the controllers
// write to it.
func (c *cloudMapContent) deleteNamespace(t *testing.T) {
	t.Helper()
	ns, services, err := c.services(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, soon, func() error {
		for name, service := range services {
			instances, err := c.instances(t.Context(), name)
			if cloudmapapi.IsNotFound(err) {
				continue
			}
			for id := range instances {
				err = errors.Join(err, c.api.DeregisterInstance(t.Context(), service.ID, id))
			}
			if err == nil {
				err = c.api.DeleteService(t.Context(), service)
			}
			if err != nil && !cloudmapapi.IsNotFound(err) {
				return err
			}
		}
		return c.api.DeleteNamespace(t.Context(), ns)
	})
}

// testCloudMap has the scenarios about the content of Cloud Map, and those that need not run on
// each registry.
func (s *survival) testCloudMap(t *testing.T) {
	c := s.store.(*cloudMapContent)
	for _, name := range s.names {
		c.pages = append(c.pages, format.PartID(format.PageOf(mcs.Key{Namespace: s.ns, Name: name}), 0))
	}
	slices.Sort(c.pages)
	c.pages = slices.Compact(c.pages)
	isRecord := func(service, instance string) bool { return service == format.MembersService && instance == "cls1" }
	isPage := func(service, _ string) bool { return service == format.CatalogName("cls1") }

	s.test(t, "the member record is deregistered", allowance{}, func(t *testing.T) { c.deregister(t, isRecord) })
	s.test(t, "all pages are deregistered", allowance{}, func(t *testing.T) { c.deregister(t, isPage) })
	s.test(t, "all pages are deregistered while the other cluster's controller restarts", allowance{}, func(t *testing.T) {
		c.deregister(t, isPage)
		began := time.Now()
		kubectl(t, s.cls2, "-n", system, "rollout", "restart", manager)
		kubectl(t, s.cls2, "-n", system, "rollout", "status", manager, "--timeout=90s")
		eventually(t, recovery, func() error { return c.complete(t.Context(), "cls1") })
		t.Logf("all pages were back after %s", round(time.Since(began)))
	})
	s.test(t, "member record and pages are deregistered", allowance{}, func(t *testing.T) {
		c.deregister(t, func(service, instance string) bool { return isRecord(service, instance) || isPage(service, instance) })
	})
	s.test(t, "the namespace is deleted with everything in it", allowance{}, func(t *testing.T) { c.deleteNamespace(t) })
	s.test(t, "the registry restarts empty", allowance{}, func(t *testing.T) {
		if err := errors.Join(suite.StopRegistry(t.Context()), suite.EmptyRegistry(), suite.StartRegistry(t.Context())); err != nil {
			t.Fatal(err)
		}
	})
	s.testForgery(t, c)
	if !testing.Short() {
		s.testRename(t, s.requestsIn, func(*testing.T) {}) // the IAM policies permit both IDs
		s.testTooLarge(t)
		s.testSlowPage(t)
		s.testShareWithdrawn(t)
		s.testTrustedKeysOnly(t)
	}
}

// testForgery has the scenarios in which another member writes as cls1.
func (s *survival) testForgery(t *testing.T, c *cloudMapContent) {
	other := cloudMapAs(t, "AKIDCLS2", "secret-of-cls2")
	// forge writes a record without pages, and later than cls1's, with the credentials of cls2.
	forge := func(t *testing.T, members cloudmapapi.Service) {
		t.Helper()
		records, err := c.instances(t.Context(), format.MembersService)
		if err != nil {
			t.Fatal(err)
		}
		attributes := maps.Clone(records["cls1"].Attributes)
		for _, attr := range []string{format.AttrGeneration, format.AttrHeartbeat} {
			number, err := strconv.ParseInt(attributes[attr], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			attributes[attr] = fmt.Sprint(number + 1000)
		}
		attributes[format.AttrPages] = ""
		if _, err := other.RegisterInstance(t.Context(), members.ID, cloudmapapi.Instance{ID: "cls1", Attributes: attributes}); err != nil {
			t.Fatal(err)
		}
	}
	members := func(t *testing.T) cloudmapapi.Service {
		t.Helper()
		_, services, err := c.services(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return services[format.MembersService]
	}
	s.test(t, "another member overwrites the member record with one without pages", allowance{}, func(t *testing.T) {
		in := members(t)
		var problems []string
		eventually(t, started, func() (err error) {
			forge(t, in) // each time: cls1 may have replaced the forged record before cls2 reads
			problems, err = memberProblems(t.Context(), s.cls2, "cls1")
			if err == nil && len(problems) == 0 {
				err = errors.New("cls2 shows no problem of the member cls1")
			}
			return err
		})
		t.Logf("cls2 shows for the member cls1: %q", problems)
	})
	s.test(t, "another member writes a farewell of the cluster with its own key", allowance{}, func(t *testing.T) {
		signer, err := trust.NewSigner(bytes.Repeat([]byte{2}, ed25519.SeedSize), nil)
		if err != nil {
			t.Fatal(err)
		}
		in := members(t)
		eventually(t, started, func() error {
			records, err := c.instances(t.Context(), format.MembersService)
			if err != nil {
				return err
			}
			farewell, err := format.ParseMember(records["cls1"], clusterset.ClusterSetID)
			if err != nil {
				return err
			}
			farewell.Pages, farewell.Farewell, farewell.Heartbeat, farewell.Generation = format.Digests{}, true, farewell.Heartbeat+1000, farewell.Generation+1000
			if _, err := other.RegisterInstance(t.Context(), in.ID, farewell.Instance(signer)); err != nil {
				return err
			}
			problems, err := memberProblems(t.Context(), s.cls2, "cls1")
			if err == nil && len(problems) == 0 {
				err = errors.New("cls2 shows no problem of the member cls1")
			}
			return err
		})
	})
	s.test(t, "another member replays an earlier record of the cluster", allowance{}, func(t *testing.T) {
		in := members(t)
		records, err := c.instances(t.Context(), format.MembersService)
		if err != nil {
			t.Fatal(err)
		}
		earlier := records["cls1"]
		if err := s.changePropagates(t.Context()); err != nil {
			t.Fatal(err)
		}
		for range 10 {
			if _, err := other.RegisterInstance(t.Context(), in.ID, earlier); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
	})
	s.test(t, "another member keeps the member record overwritten for longer than --stale-after", allowance{}, func(t *testing.T) {
		addArgs(t, s.cls1, "--heartbeat-interval=4s")
		addArgs(t, s.cls2, "--heartbeat-interval=4s", "--stale-after=20s")
		in := members(t)
		for end := time.Now().Add(40 * time.Second); time.Now().Before(end); time.Sleep(500 * time.Millisecond) {
			forge(t, in)
			if err := s.allReady(t.Context(), exportCount); err != nil {
				t.Fatal(err)
			}
		}
	})
	s.test(t, "a page is overwritten", allowance{}, func(t *testing.T) {
		_, services, err := c.services(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		name := format.CatalogName("cls1")
		catalog, err := c.instances(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		pages := slices.Sorted(slices.Values(c.pages))
		page, other := catalog[pages[0]], catalog[pages[1]]
		if _, err := c.api.RegisterInstance(t.Context(), services[name].ID, cloudmapapi.Instance{ID: page.ID, Attributes: other.Attributes}); err != nil {
			t.Fatal(err)
		}
		eventually(t, recovery, func() error {
			catalog, err := c.instances(t.Context(), name)
			if err == nil && maps.Equal(catalog[page.ID].Attributes, other.Attributes) {
				err = fmt.Errorf("the instance %s has the attributes of %s", page.ID, other.ID)
			}
			return err
		})
	})
}

// testRename has the scenarios in which cls1 gets another ID. requestsIn counts the requests to the
// registry during a time, and permit gives cls1 the permissions for its other ID.
func (s *survival) testRename(t *testing.T, requestsIn func(t *testing.T, during time.Duration) int, permit func(t *testing.T)) {
	rename := func(t *testing.T, id string) {
		t.Helper()
		kubectl(t, s.cls1, "patch", "clusterproperty", "cluster.clusterset.k8s.io", "--type=merge", "-p", fmt.Sprintf(`{"spec":{"value":%q}}`, id))
	}
	s.test(t, "the cluster is renamed without permissions for the new name", allowance{}, func(t *testing.T) {
		rename(t, "not-permitted")
		n := requestsIn(t, status.RequestWindow)
		t.Logf("%d requests within %s", n, status.RequestWindow)
		if n > 150 {
			t.Errorf("there were %d requests within %s, want at most 150", n, status.RequestWindow)
		}
		rename(t, "cls1")
	})
	s.test(t, "the cluster is renamed and renamed back", allowance{}, func(t *testing.T) {
		permit(t)
		for _, id := range []string{clusterset.Renamed, "cls1"} {
			rename(t, id)
			eventually(t, started, func() error {
				for _, name := range s.names {
					if err := exporters(t.Context(), s.cls2, s.ns, name, id); err != nil {
						return err
					}
				}
				return nil
			})
		}
	})
}

// requestsIn returns the requests of cls1 to the registry within status.RequestWindow, as its
// controller counts them.
func (s *survival) requestsIn(t *testing.T, during time.Duration) int {
	t.Helper()
	time.Sleep(during)
	st, err := statusOf(t.Context(), s.cls1)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("the requests by operation: %+v", st.Requests)
	return st.Calls()
}

// testLargeService exports Services of very many endpoints and ports.
func (s *survival) testLargeService(t *testing.T) {
	for _, ports := range []int{100, 500} {
		name := fmt.Sprintf("large-%d", ports)
		s.test(t, fmt.Sprintf("a Service of %d ports and 2,000 endpoints is exported", ports), allowance{}, func(t *testing.T) {
			ns := "e2e-" + name
			createNamespace(t, ns, s.cls1, s.cls2)
			before := s.restarts(t)
			// Headless: kube-proxy would need memory for a million endpoints of the testbed's
			// nodes.
			svc := service(ns, name)
			svc.Spec.ClusterIP = corev1.ClusterIPNone
			svc.Spec.Ports = nil
			for i := range ports {
				svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: fmt.Sprintf("p%d", i), Port: int32(1000 + i)})
			}
			create(t, s.cls1, svc)
			for i := range 20 {
				var of []discoveryv1.Endpoint
				for j := range 100 {
					of = append(of, endpoint(fmt.Sprintf("10.11.%d.%d", i, j+1), ""))
				}
				create(t, s.cls1, endpoints(ns, name, fmt.Sprintf("%s-%d", name, i), svc.Spec.Ports, of...))
			}
			export(t, s.cls1, ns, name)
			time.Sleep(settle)
			// Other changes propagate meanwhile.
			if err := s.changePropagates(t.Context()); err != nil {
				t.Error(err)
			}
			time.Sleep(settle)
			if after := s.restarts(t); !maps.Equal(before, after) {
				t.Errorf("containers of controllers restarted: %v became %v", before, after)
			}
			out := kubectl(t, s.cls1, "-n", ns, "get", "serviceexport", name, "-o", "jsonpath={range .status.conditions[*]}{.type}={.status} {.reason}: {.message}{\"\\n\"}{end}")
			t.Logf("the ServiceExport has the conditions\n%s", out)
		})
	}
}

// restarts returns the numbers of restarts of the controllers' containers, by pod, with the reason
// of the last end. Pods of an earlier rollout may still be terminating, and do not count.
func (s *survival) restarts(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, c := range []cluster{s.cls1, s.cls2} {
		pods, err := controllers(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		for _, pod := range slices.DeleteFunc(pods, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil }) {
			for _, container := range pod.Status.ContainerStatuses {
				reason := ""
				if ended := container.LastTerminationState.Terminated; ended != nil {
					reason = " " + ended.Reason
				}
				out[c.name+"/"+pod.Name] = fmt.Sprint(container.RestartCount) + reason
			}
		}
	}
	return out
}

// testNodeFailure suspends the node of cls1's leader, which can announce nothing, and resumes it
// later.
func (s *survival) testNodeFailure(t *testing.T) {
	const stopped, other = "cls1-node2", "cls1-node1"
	s.test(t, "the node of the leader fails and returns", allowance{}, func(t *testing.T) {
		s.placeLeader(t, stopped, other)
		if n, err := signalGroup("/cloud-map-mcs-testbed/"+stopped, syscall.SIGSTOP); err != nil || n == 0 {
			t.Fatalf("stopped %d processes of the node: %v", n, err)
		}
		defer func() {
			if _, err := signalGroup("/cloud-map-mcs-testbed/"+stopped, syscall.SIGCONT); err != nil {
				t.Error(err)
			}
		}()
		began := time.Now()
		if err := s.changePropagates(t.Context()); err != nil {
			t.Error(err)
		}
		t.Logf("a change propagated %s after the node's failure", round(time.Since(began)))
	})
}

// placeLeader makes two replicas run in cls1: the leader on one node, the other replica on the
// other node.
func (s *survival) placeLeader(t *testing.T, node, other string) {
	t.Helper()
	kubectl(t, s.cls1, "-n", system, "scale", manager, "--replicas=2")
	// evict deletes the pods on a node, which start elsewhere, until they are placed as wanted.
	evict := func(from string, keepLeader bool, placed func(pods []corev1.Pod, leader string) bool) {
		t.Helper()
		kubectl(t, s.cls1, "cordon", from)
		defer kubectl(t, s.cls1, "uncordon", from)
		eventually(t, started, func() error {
			pods, leader, err := s.replicas(t.Context())
			if err != nil || placed(pods, leader) {
				return err
			}
			for _, pod := range pods {
				if pod.Spec.NodeName == from && (pod.Name != leader || !keepLeader) {
					_ = s.cls1.Delete(t.Context(), &pod)
				}
			}
			return fmt.Errorf("the leader is %q, and the replicas are not on the nodes wanted", leader)
		})
	}
	leads := func(pods []corev1.Pod, leader string) bool {
		return slices.ContainsFunc(pods, func(p corev1.Pod) bool { return p.Name == leader && p.Spec.NodeName == node })
	}
	evict(other, false, leads)
	evict(node, true, func(pods []corev1.Pod, _ string) bool {
		return slices.ContainsFunc(pods, func(p corev1.Pod) bool { return p.Spec.NodeName == other })
	})
	kubectl(t, s.cls1, "-n", system, "rollout", "status", manager, "--timeout=90s")
	if pods, leader, err := s.replicas(t.Context()); err != nil || !leads(pods, leader) {
		t.Fatalf("the leader %q is not on %s: %v", leader, node, err)
	}
}

// replicas returns the pods of cls1's controller that are not being deleted, and the name of the
// leader.
func (s *survival) replicas(ctx context.Context) (pods []corev1.Pod, leader string, err error) {
	if pods, err = controllers(ctx, s.cls1); err != nil {
		return nil, "", err
	}
	leader, err = s.leader(ctx)
	return slices.DeleteFunc(pods, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil }), leader, err
}

// leader returns the pod that leads in cls1.
func (s *survival) leader(ctx context.Context) (string, error) {
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: names.Lease}}
	if err := s.cls1.Get(ctx, client.ObjectKeyFromObject(lease), lease); err != nil {
		return "", err
	}
	if lease.Spec.HolderIdentity == nil {
		return "", errors.New("there is no leader")
	}
	pod, _, _ := strings.Cut(*lease.Spec.HolderIdentity, "_")
	return pod, nil
}
