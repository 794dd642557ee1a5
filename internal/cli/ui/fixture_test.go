package ui

import (
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/check"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/doctor"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/show"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/docs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
)

var today = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// A fleet is a clusterset as the controllers of some of its clusters report it.
type fleet struct {
	set      string
	members  []status.Member
	contexts []string
	// unreachable are clusters that the contexts do not reach, conflicts those of services.
	unreachable map[string]bool
	conflicts   map[mcs.Key][]string
	exports     []mcs.Export
	// importers are the clusters that import a service, besides the contexts.
	importers map[mcs.Key][]string
	// absent are the contexts whose controllers are not read, events those of the history.
	absent []show.ClusterStatus
	events []contextEvents
}

// history returns the events of the page.
func (f *fleet) history() History { return newHistory(today, f.events) }

// addService adds exports of a service, each with ready endpoints and some that are not.
func (f *fleet) addService(namespace, name string, port int32, ready, notReady int, exporters ...string) mcs.Key {
	key := mcs.Key{Namespace: namespace, Name: name}
	for i, id := range exporters {
		endpoints := make([]mcs.Endpoint, ready+notReady)
		for j := range ready {
			endpoints[j].Ready = true
		}
		f.exports = append(f.exports, mcs.Export{
			Key: key, Cluster: id, Created: today.Add(-time.Duration(90-10*i) * 24 * time.Hour), Type: mcsv1beta1.ClusterSetIP,
			Ports: []mcs.Port{{Protocol: corev1.ProtocolTCP, Port: port}}, Backends: []mcs.Backends{{Endpoints: endpoints}},
		})
		for m := range f.members {
			if f.members[m].ClusterID == id {
				f.members[m].Exports++
				f.members[m].Endpoints += ready + notReady
			}
		}
	}
	return key
}

// clusterset returns the document of the page.
func (f *fleet) clusterset() Clusterset {
	var statuses []show.ClusterStatus
	var lists []show.ContextServices
	stale := map[string]bool{}
	for _, m := range f.members {
		stale[m.ClusterID] = m.Stale
	}
	for _, id := range f.contexts {
		s := &status.Status{
			Version: "v0.1.0", Time: today, Leader: true, Registry: "cloudmap", Synced: true, PathHealth: "withdraw", Members: f.members,
			Identity: &mcs.Identity{ClusterID: id, ClusterSetID: f.set, UID: "uid-" + id},
			Requests: []status.Request{{Registry: "cloudmap", Operation: "DiscoverInstances", Result: "ok", Count: 12}, {Registry: "cloudmap", Operation: "RegisterInstance", Result: "ok", Count: 5}},
		}
		for _, m := range f.members {
			if m.ClusterID == id {
				continue
			}
			age := 1.5
			path := status.Path{ClusterID: m.ClusterID, State: status.PathReachable, Seconds: 86400, Controller: status.PathProbes{Targets: 1, Reached: 1}, Endpoints: status.PathProbes{Targets: 3, Reached: 3}, NotificationAge: &age}
			if f.unreachable[m.ClusterID] {
				path = status.Path{ClusterID: m.ClusterID, State: status.PathUnreachable, Seconds: 240, Controller: status.PathProbes{Targets: 1}, Endpoints: status.PathProbes{Targets: 3}}
			}
			s.Paths = append(s.Paths, path)
		}
		services := f.services(id, stale)
		for _, svc := range services {
			if len(svc.Conflicts) > 0 {
				s.Conflicts = append(s.Conflicts, status.Conflict{Key: svc.Key, Problems: svc.Conflicts})
			}
		}
		s.Services = len(services)
		statuses = append(statuses, show.ClusterStatus{Context: id, Status: s})
		lists = append(lists, show.ContextServices{Context: id, Services: services})
	}
	for _, c := range f.absent {
		statuses, lists = append(statuses, c), append(lists, show.ContextServices{Context: c.Context})
	}
	return newClusterset(today, statuses, lists)
}

// services returns the services as the controller of the cluster id knows them.
func (f *fleet) services(id string, stale map[string]bool) []status.Service {
	at := map[mcs.Key]int{}
	var services []status.Service
	for _, exp := range f.exports {
		if _, known := at[exp.Key]; !known {
			at[exp.Key] = len(services)
			services = append(services, status.Service{Key: exp.Key, Conflicts: f.conflicts[exp.Key]})
		}
		svc := &services[at[exp.Key]]
		if exp.Cluster == id {
			svc.Own, svc.Publication = &exp, &status.Publication{Key: exp.Key, State: "Exported"}
			svc.Importers = &mcs.Importers{Recipients: f.importers[exp.Key], Importing: f.importers[exp.Key]}
			continue
		}
		svc.Exports = append(svc.Exports, exp)
		svc.ImportedFrom = append(svc.ImportedFrom, exp.Cluster)
		if stale[exp.Cluster] {
			svc.Stale = append(svc.Stale, exp.Cluster)
		}
	}
	return services
}

func newMember(id string, i int) status.Member {
	return status.Member{ClusterID: id, UID: "uid-" + id, Version: "v0.1.0", Key: "SxMK3WdMfm5WqzuZDw9_LVtqVwfZfWfvNA9IBhjcucI", HeartbeatAge: float64(i*7%100) / 10}
}

// three returns a clusterset of three clusters, of which one is drained in part and one is stale.
func three() *fleet {
	f := &fleet{set: "production", contexts: []string{"frankfurt", "dublin", "virginia"}}
	for i, id := range f.contexts {
		f.members = append(f.members, newMember(id, i+1))
	}
	f.members[1].Drain = "50%"
	f.members[2].Stale, f.members[2].HeartbeatAge = true, 312
	f.contexts = f.contexts[:2]
	f.addService("shop", "web", 80, 6, 0, "frankfurt")
	cart := f.addService("shop", "cart", 8080, 4, 1, "frankfurt")
	search := f.addService("shop", "search", 9200, 3, 0, "frankfurt", "dublin")
	f.addService("payments", "api", 443, 5, 0, "dublin")
	f.addService("payments", "fraud", 8443, 0, 2, "frankfurt")
	f.addService("payments", "ledger", 5432, 3, 0, "virginia")
	f.addService("platform", "login", 443, 4, 0, "frankfurt", "virginia")
	f.addService("platform", "metrics", 9090, 2, 0, "frankfurt")
	f.importers = map[mcs.Key][]string{cart: {"dublin", "virginia"}}
	f.exports[1].ClusterSelectors, f.exports[1].Recipients = "$self; topology.kubernetes.io/region=$self; *", "dublin virginia"
	f.conflicts = map[mcs.Key][]string{search: {"PortConflict: port 9200/TCP differs: dublin has appProtocol http, frankfurt has none; the export of frankfurt is the oldest and decides"}}
	return f
}

// many returns a clusterset of n clusters with some of each state.
func many(n int) *fleet {
	f := &fleet{set: "production", unreachable: map[string]bool{}, conflicts: map[mcs.Key][]string{}, importers: map[mcs.Key][]string{}}
	regions := []string{"eu-central-1", "eu-west-1", "us-east-1", "us-west-2", "ap-south-1"}
	for i := range n {
		m := newMember(fmt.Sprintf("%s-%02d", regions[i%len(regions)], i/len(regions)+1), i)
		switch {
		case i%75 == 31:
			m.Stale, m.HeartbeatAge = true, float64(100+i*3)
		case i%100 == 44:
			f.unreachable[m.ClusterID] = true
		case i%150 == 62:
			m.Problems = []string{"page 07 cannot be read: it has 1,203 bytes, its digest is of 1,310"}
		case i%90 == 12:
			m.Drain = "100%"
		case i%60 == 5:
			m.Version = "v0.2.0-rc.1"
		}
		f.members = append(f.members, m)
	}
	ids := func(at, count int) (out []string) {
		for j := range count {
			out = append(out, f.members[(at+j*7)%n].ClusterID)
		}
		return out
	}
	f.contexts = ids(0, min(n, 3))
	names := []string{"api", "web", "cart", "search", "ledger", "login", "events", "images"}
	for i := range 2 * n {
		notReady, ready := i%3, i%11+1
		if i%97 == 13 {
			ready, notReady = 0, 2
		}
		key := f.addService(fmt.Sprintf("team-%02d", i/len(names)), names[i%len(names)], 8080, ready, notReady, ids(i, i%4+1)...)
		f.importers[key] = ids(i*5, i%30)
		if i%120 == 50 {
			f.conflicts[key] = []string{"PortConflict: port 8080/TCP differs"}
		}
	}
	return f
}

// hostileName is a name that a member could write if the registry had no validation.
const hostileName = `<img src=x onerror=alert(1)>"'&<script>document.title='owned'</script>` + "\u202e\x1b[31m"

// hostile returns a clusterset in which every text of other clusters is hostile.
func hostile() *fleet {
	f := three()
	f.members[2].ClusterID, f.members[2].Version, f.members[2].Key = hostileName, hostileName, hostileName
	f.members[2].Problems = []string{hostileName}
	f.set = hostileName
	key := f.addService(hostileName, hostileName, 80, 1, 0, hostileName)
	f.exports[len(f.exports)-1].ClusterSelectors, f.exports[len(f.exports)-1].Type = hostileName, hostileName
	f.conflicts[key] = []string{hostileName}
	return f
}

// diagnosis returns the diagnosis of a service.
func diagnosis(key mcs.Key, probe bool) doctor.Diagnosis {
	ok := func(name, detail string) check.Check {
		return check.Check{Name: name, Result: check.OK, Detail: detail}
	}
	d := doctor.Diagnosis{Service: key.String(), Phases: []doctor.Phase{
		{Context: "frankfurt", Name: "export", Steps: []check.Check{
			ok("Service", "ClusterIP 8080/TCP"), ok("EndpointSlices", "4 of 5 endpoints are ready"), ok("permissions", "the controller has all required permissions"),
			ok("controller", "v0.1.0, cluster frankfurt of clusterset production"), ok("ServiceExport", "valid and exported"), ok("registry", "has the export of this cluster"), ok("conflicts", "none"),
		}},
		{Context: "dublin", Name: "import", Steps: []check.Check{
			ok("permissions", "the controller has all required permissions"), ok("controller", "v0.1.0, cluster dublin of clusterset production"), ok("registry", "has exports of frankfurt"),
			ok("ServiceImport", "ClusterSetIP 172.20.15.28 from frankfurt"), ok("derived Service", "imported-s43vmrvr32z5fvoea3gr 172.20.15.28"),
			{Name: "imported slices", Result: check.Warning, Detail: "3 of 5 endpoints from frankfurt are ready (4 in frankfurt)", Remedy: "changes take one or two seconds: run this command again"},
			{Name: "CoreDNS", Result: check.Failed, Detail: "clusterset.local is not enabled", Remedy: "run kubectl mcs dns enable --context dublin"},
		}},
	}}
	if probe {
		d.Phases[1].Steps = append(d.Phases[1].Steps, check.Check{Name: "DNS answer", Result: check.Failed, Detail: key.Name + "." + key.Namespace + ".svc.clusterset.local: no such host"})
	}
	d.Failure = &doctor.Failure{Context: "dublin", Check: d.Phases[1].Steps[6]}
	return d
}

// healthy returns a clusterset of n clusters without problems.
func healthy(n int) *fleet {
	f := many(n)
	for i := range f.members {
		f.members[i] = newMember(f.members[i].ClusterID, i)
	}
	f.unreachable, f.conflicts, f.exports = nil, nil, nil
	names := []string{"api", "web", "cart", "search", "ledger", "login", "events", "images"}
	for i := range 2 * n {
		exporters := []string{f.members[i*5%n].ClusterID}
		if other := f.members[(i*3+1)%n].ClusterID; i%4 == 0 && other != exporters[0] {
			exporters = append(exporters, other)
		}
		key := f.addService(fmt.Sprintf("team-%02d", i/len(names)), names[i%len(names)], 8080, i%5+1, 0, exporters...)
		f.importers[key] = []string{f.members[(i*7+1)%n].ClusterID}
	}
	f.events = []contextEvents{{context: f.contexts[0], events: []corev1.Event{happened(12*time.Minute, corev1.EventTypeNormal, "ServiceImport", "web", "ClusterSelectionChanged", "served by frankfurt")}}}
	return f
}

// broken returns a clusterset of n clusters, some of which have each problem.
func broken(n int) *fleet {
	f := many(n)
	last := n - 1
	f.members[last].Stale, f.members[last].HeartbeatAge = true, 312
	f.unreachable[f.members[n/2].ClusterID] = true
	key := f.exports[0].Key
	f.conflicts[key] = []string{"PortConflict: port 8080/TCP differs: the export of " + f.members[0].ClusterID + " is the oldest and decides"}
	f.absent = []show.ClusterStatus{
		{Context: "staging", State: "no permission", Problem: "no permission to list pods in namespace cloud-map-mcs-system", Remedy: "see " + docs.URL("kubectl-mcs.md#permissions")},
		{
			Context: "arn:aws:eks:eu-west-1:111122223333:cluster/analytics", State: "unreachable",
			Problem: "discovering multicluster.x-k8s.io/v1beta1: Get \"https://0123456789ABCDEF.gr7.eu-west-1.eks.amazonaws.com/apis\": dial tcp 10.3.0.7:443: i/o timeout",
		},
	}
	f.events = []contextEvents{
		{context: f.contexts[0], events: []corev1.Event{
			happened(2*time.Minute, corev1.EventTypeWarning, "ServiceImport", key.Name, "UnreachableCluster", "pods of this cluster cannot reach "+f.members[n/2].ClusterID),
			happened(9*time.Minute, corev1.EventTypeWarning, "ServiceExport", key.Name, "PortConflict", f.conflicts[key][0]),
			happened(20*time.Minute, corev1.EventTypeNormal, "ServiceImport", key.Name, "ClusterDrained", "no cluster is drained"),
		}},
		{context: "staging", err: errors.New("no permission to list events in the whole cluster")},
	}
	return f
}

// happened returns an event of the controller.
func happened(age time.Duration, kind, object, name, reason, message string) corev1.Event {
	return corev1.Event{
		InvolvedObject: corev1.ObjectReference{Kind: object, Namespace: "team-00", Name: name}, Type: kind, Reason: reason, Message: message,
		EventTime: metav1.NewMicroTime(today.Add(-age)),
	}
}
