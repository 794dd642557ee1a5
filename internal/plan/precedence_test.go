package plan

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// claim returns an export that claims to be created at start plus age.
func claim(cluster string, age time.Duration, edits ...func(*mcs.Export)) mcs.Export {
	e := mcs.Export{
		Key: mcs.Key{Namespace: "demo", Name: "web"}, Cluster: cluster, Created: start.Add(age), Type: mcsv1beta1.ClusterSetIP,
		Ports: []mcs.Port{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
	}
	for _, edit := range edits {
		edit(&e)
	}
	return e.Canonical()
}

func toHeadless(e *mcs.Export)  { e.Type = mcsv1beta1.Headless }
func withoutTime(e *mcs.Export) { e.Created = time.Time{} }

// importSince returns a ServiceImport that was created at start plus age with the given times.
func importSince(age time.Duration, times string) *mcsv1beta1.ServiceImport {
	imp := &mcsv1beta1.ServiceImport{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(start.Add(age))}}
	SetExportTimes(imp, times)
	return imp
}

// timesOf returns the value of AnnotationExportTimes for ages, in pairs of cluster and age.
func timesOf(pairs ...any) string {
	times := map[string]time.Time{}
	for i := 0; i < len(pairs); i += 2 {
		times[pairs[i].(string)] = time.Time{}
		if age, ok := pairs[i+1].(time.Duration); ok {
			times[pairs[i].(string)] = start.Add(age)
		}
	}
	return formatExportTimes(times, nil)
}

// awaitedSince returns the entry of a cluster in AnnotationExportTimes that is unknown since t.
func awaitedSince(t time.Time) string { return "?" + strconv.FormatInt(t.Unix(), 10) }

const year = 365 * 24 * time.Hour

func TestDecidePrecedence(t *testing.T) {
	established := start.Add(time.Hour)
	for _, tt := range []struct {
		name      string
		in        PrecedenceInput
		wantTimes string
		wantType  mcsv1beta1.ServiceImportType
		wantLate  []string
		fields    []string
	}{
		{
			name:      "new import: the claimed times count",
			in:        PrecedenceInput{Exports: []mcs.Export{claim("cls1", 0), claim("cls2", -year, toHeadless)}, Now: established},
			wantTimes: timesOf("cls1", time.Duration(0), "cls2", -year), wantType: mcsv1beta1.Headless,
		},
		{
			name: "established import: an export that claims to be older does not change the type",
			in: PrecedenceInput{
				Import: importSince(time.Second, timesOf("cls1", time.Duration(0))), Now: established,
				Exports: []mcs.Export{claim("cls1", 0), claim("cls2", -year, toHeadless)},
			},
			wantTimes: timesOf("cls1", time.Duration(0), "cls2", time.Second), wantType: mcsv1beta1.ClusterSetIP, wantLate: []string{"cls2"}, fields: []string{"type"},
		},
		{
			name: "the same after a restart, which reads what the ServiceImport has",
			in: PrecedenceInput{
				Import: importSince(time.Second, timesOf("cls1", time.Duration(0), "cls2", time.Second)), Now: established,
				Exports: []mcs.Export{claim("cls1", 0), claim("cls2", -year, toHeadless)},
			},
			wantTimes: timesOf("cls1", time.Duration(0), "cls2", time.Second), wantType: mcsv1beta1.ClusterSetIP, wantLate: []string{"cls2"}, fields: []string{"type"},
		},
		{
			name: "ports and families",
			in: PrecedenceInput{
				Import: importSince(time.Second, timesOf("cls1", time.Duration(0))), Now: established,
				Exports: []mcs.Export{claim("cls1", 0), claim("cls2", -year, func(e *mcs.Export) {
					e.Ports[0].Port, e.IPFamilies = 8080, []corev1.IPFamily{corev1.IPv6Protocol}
				})},
			},
			wantTimes: timesOf("cls1", time.Duration(0), "cls2", time.Second), wantType: mcsv1beta1.ClusterSetIP,
			wantLate: []string{"cls2"}, fields: []string{"ports", "ipFamilies"},
		},
		{
			name: "cluster selectors",
			in: PrecedenceInput{
				Import: importSince(time.Second, timesOf("cls1", time.Duration(0))), Now: established,
				Exports: []mcs.Export{claim("cls1", 0), claim("cls2", -year, func(e *mcs.Export) {
					e.ClusterSelectors, e.MinimumReady = `[{"propertySelector":{"matchProperties":{"cluster.clusterset.k8s.io":"cls2"}}}]`, 20
				})},
			},
			wantTimes: timesOf("cls1", time.Duration(0), "cls2", time.Second), wantType: mcsv1beta1.ClusterSetIP,
			wantLate: []string{"cls2"}, fields: []string{"clusterSelectors"},
		},
		{
			name: "an export that claims to be older and agrees is no conflict, but does not decide later either",
			in: PrecedenceInput{
				Import: importSince(time.Second, timesOf("cls1", time.Duration(0))), Now: established,
				Exports: []mcs.Export{claim("cls1", 0), claim("cls2", -year)},
			},
			wantTimes: timesOf("cls1", time.Duration(0), "cls2", time.Second), wantType: mcsv1beta1.ClusterSetIP,
		},
		{
			name: "a known export that makes itself older",
			in: PrecedenceInput{
				Import: importSince(time.Second, timesOf("cls1", time.Duration(0), "cls2", time.Hour)), Now: established,
				Exports: []mcs.Export{claim("cls1", 0), claim("cls2", -year, toHeadless)},
			},
			wantTimes: timesOf("cls1", time.Duration(0), "cls2", time.Hour), wantType: mcsv1beta1.ClusterSetIP, wantLate: []string{"cls2"}, fields: []string{"type"},
		},
		{
			name: "a younger newcomer",
			in: PrecedenceInput{
				Import: importSince(time.Second, timesOf("cls1", time.Duration(0))), Now: established,
				Exports: []mcs.Export{claim("cls1", 0), claim("cls2", time.Hour, toHeadless)},
			},
			wantTimes: timesOf("cls1", time.Duration(0), "cls2", time.Hour), wantType: mcsv1beta1.ClusterSetIP,
		},
		{
			name: "exports that were created within the same minute race",
			in: PrecedenceInput{
				Import: importSince(5*time.Second, timesOf("cls1", 3*time.Second)), Now: start.Add(10 * time.Second),
				Exports: []mcs.Export{claim("cls1", 3*time.Second), claim("cls2", 0, toHeadless)},
			},
			wantTimes: timesOf("cls1", 3*time.Second, "cls2", time.Duration(0)), wantType: mcsv1beta1.Headless,
		},
		{
			name: "but a young import does not follow an old claim",
			in: PrecedenceInput{
				Import: importSince(5*time.Second, timesOf("cls1", 3*time.Second)), Now: start.Add(10 * time.Second),
				Exports: []mcs.Export{claim("cls1", 3*time.Second), claim("cls2", -year, toHeadless)},
			},
			wantTimes: timesOf("cls1", 3*time.Second, "cls2", 4*time.Second), wantType: mcsv1beta1.ClusterSetIP, wantLate: []string{"cls2"}, fields: []string{"type"},
		},
		{
			name: "the export that decided ended: the oldest of the others decides",
			in: PrecedenceInput{
				Import: importSince(time.Second, timesOf("cls1", time.Duration(0), "cls2", time.Second)), Now: established,
				Exports: []mcs.Export{claim("cls2", -year, toHeadless)},
			},
			wantTimes: timesOf("cls2", time.Second), wantType: mcsv1beta1.Headless,
		},
		{
			name: "the ServiceExport that decided was created again",
			in: PrecedenceInput{
				Import: importSince(time.Second, timesOf("cls1", time.Duration(0), "cls2", time.Second)), Now: established,
				Exports: []mcs.Export{claim("cls1", time.Hour), claim("cls2", time.Second, toHeadless)},
			},
			wantTimes: timesOf("cls1", time.Hour, "cls2", time.Second), wantType: mcsv1beta1.Headless,
		},
		{
			name: "an unknown cluster keeps its time, and newcomers are younger",
			in: PrecedenceInput{
				Import: importSince(time.Second, timesOf("cls1", time.Duration(0))), Now: established, Unknown: []string{"cls1", "cls3"},
				Exports: []mcs.Export{claim("cls2", -year, toHeadless)},
			},
			wantTimes: timesOf("cls1", time.Duration(0), "cls2", time.Second), wantType: mcsv1beta1.Headless,
		},
		{
			name: "no creation time: every other export decides, and keeps nothing",
			in: PrecedenceInput{
				Import: importSince(time.Second, timesOf("cls1", time.Duration(0), "cls2", nil)), Now: established,
				Exports: []mcs.Export{claim("cls1", 0), claim("cls2", -year, toHeadless), claim("cls3", 0, withoutTime, toHeadless)},
			},
			wantTimes: timesOf("cls1", time.Duration(0), "cls2", time.Second, "cls3", nil), wantType: mcsv1beta1.ClusterSetIP,
			wantLate: []string{"cls2"}, fields: []string{"type"},
		},
		{
			name: "an administrator removed the times: the claimed ones count",
			in: PrecedenceInput{
				Import: importSince(time.Second, ""), Now: established,
				Exports: []mcs.Export{claim("cls1", 0), claim("cls2", -year, toHeadless)},
			},
			wantTimes: timesOf("cls1", time.Duration(0), "cls2", -year), wantType: mcsv1beta1.Headless,
		},
		{
			name: "new import: an unknown cluster may have an older export",
			in: PrecedenceInput{
				Exports: []mcs.Export{claim("cls1", 0)}, Unknown: []string{"cls2"}, Now: established,
			},
			wantTimes: timesOf("cls1", time.Duration(0)) + ",cls2=" + awaitedSince(established), wantType: mcsv1beta1.ClusterSetIP,
		},
		{
			name: "a cluster that was unknown when the import began has the oldest export",
			in: PrecedenceInput{
				Import: importSince(time.Hour, timesOf("cls1", time.Duration(0))+",cls2="+awaitedSince(established)), Now: established.Add(2 * time.Minute),
				Exports: []mcs.Export{claim("cls1", 0), claim("cls2", -year, toHeadless)},
			},
			wantTimes: timesOf("cls1", time.Duration(0), "cls2", -year), wantType: mcsv1beta1.Headless,
		},
		{
			name: "one of two such clusters is still unknown",
			in: PrecedenceInput{
				Import: importSince(time.Hour, timesOf("cls1", time.Duration(0))+",cls2="+awaitedSince(established)+",cls3="+awaitedSince(established)),
				Now:    established.Add(2 * time.Minute), Unknown: []string{"cls3", "cls4"}, Exports: []mcs.Export{claim("cls1", 0)},
			},
			wantTimes: timesOf("cls1", time.Duration(0)) + ",cls2=" + awaitedSince(established) + ",cls3=" + awaitedSince(established), wantType: mcsv1beta1.ClusterSetIP,
		},
		{
			name: "such a cluster is known to export nothing",
			in: PrecedenceInput{
				Import: importSince(time.Hour, timesOf("cls1", time.Duration(0))+",cls2="+awaitedSince(established)), Now: established.Add(2 * time.Minute),
				Exports: []mcs.Export{claim("cls1", 0)},
			},
			wantTimes: timesOf("cls1", time.Duration(0)), wantType: mcsv1beta1.ClusterSetIP,
		},
		{
			name: "such a cluster stayed unknown for too long",
			in: PrecedenceInput{
				Import: importSince(time.Hour, timesOf("cls1", time.Duration(0))+",cls2="+awaitedSince(established)), Now: established.Add(AwaitedFor),
				Exports: []mcs.Export{claim("cls1", 0), claim("cls2", -year, toHeadless)},
			},
			wantTimes: timesOf("cls1", time.Duration(0), "cls2", time.Second), wantType: mcsv1beta1.ClusterSetIP, wantLate: []string{"cls2"}, fields: []string{"type"},
		},
		{
			name: "an import without times, as after an upgrade: an unknown cluster may have an older export",
			in: PrecedenceInput{
				Import: importSince(time.Second, ""), Exports: []mcs.Export{claim("cls1", 0)}, Unknown: []string{"cls2"}, Now: established,
			},
			wantTimes: timesOf("cls1", time.Duration(0)) + ",cls2=" + awaitedSince(established), wantType: mcsv1beta1.ClusterSetIP,
		},
		{
			name: "an administrator removed the times: the claimed ones count, also if the registry knows the order",
			in: PrecedenceInput{
				Import: importSince(time.Second, ""), Now: established, Order: map[string]int64{"cls1": 10, "cls2": 20},
				Exports: []mcs.Export{claim("cls1", 0), claim("cls2", -year, toHeadless)},
			},
			wantTimes: timesOf("cls1", time.Duration(0), "cls2", -year), wantType: mcsv1beta1.Headless,
		},
		{
			name: "the registry got the older claim later",
			in: PrecedenceInput{
				Exports: []mcs.Export{claim("cls1", 0), claim("cls2", -year, toHeadless), claim("cls3", -2*year, toHeadless)}, Now: established,
				Order: map[string]int64{"cls1": 10, "cls2": 20}, // cls3 is not in it yet
			},
			wantTimes: timesOf("cls1", time.Duration(0), "cls2", time.Second, "cls3", 2*time.Second), wantType: mcsv1beta1.ClusterSetIP,
			wantLate: []string{"cls2", "cls3"}, fields: []string{"type"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := slices.Clone(tt.in.Exports)
			got := DecidePrecedence(tt.in)
			if got.Times != tt.wantTimes {
				t.Errorf("times %s, want %s", got.Times, tt.wantTimes)
			}
			m := got.Merge()
			if m.Type != tt.wantType {
				t.Errorf("type %s, want %s", m.Type, tt.wantType)
			}
			if diff := cmp.Diff(tt.wantLate, got.Late) + cmp.Diff(tt.fields, got.Fields); diff != "" {
				t.Errorf("late exports (-want +got):\n%s", diff)
			}
			conflicts := len(m.Conflicts) > 0 && m.Conflicts[len(m.Conflicts)-1].Reason == ReasonPrecedenceConflict
			if conflicts != (len(tt.wantLate) > 0) {
				t.Errorf("conflicts %+v", m.Conflicts)
			}
			for i, e := range tt.in.Exports {
				if !e.Created.Equal(before[i].Created) {
					t.Errorf("the input changed")
				}
			}
		})
	}
}

// An export that appears late has its addresses last, whatever it claims, and all exports have the
// conflict.
func TestPrecedence_Addresses(t *testing.T) {
	late := webExport("cls2", "10.10.0.1", "10.20.0.1")
	late.Created = start.Add(-year)
	p := DecidePrecedence(PrecedenceInput{Import: importSince(0, timesOf("cls1", time.Duration(0))), Exports: []mcs.Export{late, webExport("cls1", "10.10.0.1")}, Now: start.Add(time.Hour)})
	conflicts := p.Merge().Conflicts
	if len(conflicts) != 1 || conflicts[0].Reason != mcs.ReasonAddressConflict || !strings.Contains(conflicts[0].Message, "cluster cls2 exports endpoints of cluster cls1") {
		t.Errorf("conflicts %+v, want that cls1 has its address", conflicts)
	}
	if !p.Created["cls2"].After(p.Created["cls1"]) {
		t.Errorf("times %v", p.Created)
	}
}

func TestPrecedence_Message(t *testing.T) {
	p := Precedence{Late: []string{"a", "b", "c", "d", "e", "f", "g"}, Fields: []string{"type", "ports"}}
	want := "precedence: the export of cluster a, b, c, d, e and 2 more claims to be older than the others but appeared after them, so it does not change type, ports"
	if got := p.Message(); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestExportTimes_IgnoresInvalidAnnotation(t *testing.T) {
	for _, text := range []string{"", "cls1", "cls1=x", "cls1=?", "cls1=?x", "cls1=1790000000,cls2"} {
		if got, awaited := exportTimes(importSince(0, text)); len(got)+len(awaited) > 0 {
			t.Errorf("%q: %v %v", text, got, awaited)
		}
	}
	if got, awaited := exportTimes(nil); got != nil || awaited != nil {
		t.Errorf("no import: %v %v", got, awaited)
	}
}

// An importer, which is restarted at will because it keeps nothing but the ServiceImport, follows
// the export that decides as long as it neither ends nor changes, whatever other clusters publish.
// Importers with the same history agree.
func TestDecidePrecedence_KeepsDecidingExport(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := start.Add(24 * time.Hour)
		exports := map[string]mcs.Export{"cls1": claim("cls1", 0)}
		imp := importSince(0, timesOf("cls1", time.Duration(0)))
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 3600).Draw(t, "seconds")) * time.Second)
			cluster := rapid.SampledFrom([]string{"aaa", "cls2", "cls3", "cls4"}).Draw(t, "cluster")
			if rapid.Bool().Draw(t, "ends") {
				delete(exports, cluster)
			} else {
				e := claim(cluster, time.Duration(rapid.IntRange(-100_000, 100_000).Draw(t, "age"))*time.Minute)
				if rapid.Bool().Draw(t, "no time") {
					e.Created = time.Time{}
				}
				if rapid.Bool().Draw(t, "headless") {
					e.Type = mcsv1beta1.Headless
				}
				e.Ports[0].Port = int32(rapid.IntRange(80, 82).Draw(t, "port"))
				exports[cluster] = e
			}
			in := PrecedenceInput{Import: imp, Now: now}
			for _, e := range exports {
				if rapid.IntRange(0, 9).Draw(t, "unknown") == 0 && e.Cluster != "cls1" {
					in.Unknown = append(in.Unknown, e.Cluster)
					continue
				}
				in.Exports = append(in.Exports, e)
			}
			p := DecidePrecedence(in)
			m := p.Merge()
			if m.Type != mcsv1beta1.ClusterSetIP || m.Ports[0].Port != 80 || !slices.Equal(m.IPFamilies, exports["cls1"].IPFamilies) {
				t.Fatalf("the import changed to %s %v: times %s", m.Type, m.Ports, p.Times)
			}
			slices.Reverse(in.Exports)
			if again := DecidePrecedence(in); again.Times != p.Times {
				t.Fatalf("another order of the exports: times %s, want %s", again.Times, p.Times)
			}
			SetExportTimes(imp, p.Times)
			if strings.Count(p.Times, "=") != len(exports)-len(in.Unknown)+countKnown(p.Times, in.Unknown) {
				t.Fatalf("times %s of %d exports, %v unknown", p.Times, len(exports), in.Unknown)
			}
		}
	})
}

func countKnown(times string, clusters []string) (n int) {
	for _, c := range clusters {
		if strings.Contains(","+times, ","+c+"=") {
			n++
		}
	}
	return n
}
