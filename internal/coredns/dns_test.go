package coredns

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/golden"
)

// samples returns Corefiles without clusterset.local, by name: testdata/*.corefile.
func samples(t testing.TB) map[string]string {
	t.Helper()
	files, err := filepath.Glob("testdata/*.corefile")
	if err != nil || len(files) == 0 {
		t.Fatalf("no samples: %v", err)
	}
	found := map[string]string{}
	for _, f := range files {
		found[strings.TrimSuffix(filepath.Base(f), ".corefile")] = readFile(t, f)
	}
	return found
}

func readFile(t testing.TB, name string) string {
	t.Helper()
	content, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// TestEnableSamples compares each enabled sample with its golden file, which shows every edit.
func TestEnableSamples(t *testing.T) {
	for name, src := range samples(t) {
		t.Run(name, func(t *testing.T) {
			enabled, err := Enable(src, "")
			if err != nil {
				t.Fatal(err)
			}
			golden.Check(t, filepath.Join("testdata", name+".enabled"), enabled)
			if again, err := Enable(enabled, ""); err != nil || again != enabled {
				t.Errorf("enabling twice changes the Corefile: %v\n%s", err, cmp.Diff(enabled, again))
			}
			if restored, err := Disable(enabled, ""); err != nil || restored != src {
				t.Errorf("disabling does not restore the original: %v\n%s", err, cmp.Diff(src, restored))
			}
			if same, err := Disable(src, ""); err != nil || same != src {
				t.Errorf("disabling a disabled Corefile changes it: %v\n%s", err, cmp.Diff(src, same))
			}
		})
	}
}

func TestEnable(t *testing.T) {
	for _, tt := range []struct {
		name, domain, src, want string
		wantErr                 string
	}{
		{
			name: "zone written manually, option missing",
			src:  ".:53 {\n  kubernetes cluster.local clusterset.local {\n    pods insecure\n  }\n}\n",
			want: ".:53 {\n  kubernetes cluster.local clusterset.local {\n    pods insecure\n    multicluster clusterset.local\n  }\n}\n",
		},
		{
			name: "option for another zone gets one more",
			src:  ".:53 {\n  kubernetes cluster.local other.set {\n    multicluster other.set\n  }\n}\n",
			want: ".:53 {\n  kubernetes cluster.local clusterset.local other.set {\n    multicluster other.set clusterset.local\n  }\n}\n",
		},
		{
			name:   "cluster domain given: only its block",
			domain: "b.example",
			src:    "a.example {\n  kubernetes a.example\n}\nb.example {\n  kubernetes b.example\n}\n",
			want: "a.example {\n  kubernetes a.example\n}\nb.example clusterset.local {\n  kubernetes b.example clusterset.local {\n" +
				"      multicluster clusterset.local\n  }\n}\n",
		},
		{name: "no kubernetes plugin", src: ".:53 {\n  forward . 1.1.1.1\n}\n", wantErr: "none serves \"cluster.local\""},
		{name: "another domain asked for", domain: "x.y", src: ".:53 {\n  kubernetes cluster.local\n}\n", wantErr: "none serves \"x.y\""},
		{
			name:    "Submariner's server block",
			src:     "clusterset.local:53 {\n  forward . 10.0.0.9\n}\n.:53 {\n  kubernetes cluster.local\n}\n",
			wantErr: "line 1: the server block of \"clusterset.local:53\" receives the queries",
		},
		{
			name:    "the external multicluster plugin of the legacy controller",
			src:     ".:53 {\n  kubernetes cluster.local\n  multicluster clusterset.local\n}\n",
			wantErr: "line 3 loads the external multicluster plugin",
		},
		{
			name:    "both braces on one line",
			src:     ".:53 {\n  kubernetes cluster.local { }\n}\n",
			wantErr: "line 2: the layout",
		},
		{name: "unclosed", src: ".:53 {\n  kubernetes cluster.local {\n", wantErr: "line 2: the block of \"kubernetes\" has no closing brace"},
		{name: "server block unclosed", src: ".:53 {\n  kubernetes cluster.local\n", wantErr: "the block of \".:53\" has no closing brace"},
		{name: "brace too many", src: ".:53 {\n  whoami }\n}\n", wantErr: "line 2: a closing brace without"},
		{
			name:    "server block without a key to copy",
			src:     "svc.cluster.local:53 {\n  kubernetes cluster.local\n}\n",
			wantErr: "add the key clusterset.local",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Enable(tt.src, tt.domain)
			if tt.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
					t.Fatalf("error %v, want one with %q", err, tt.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("enabled (-want +got):\n%s", diff)
			}
		})
	}
}

// Disable also removes a zone that was written manually.
func TestDisableHandWritten(t *testing.T) {
	for _, tt := range []struct{ name, src, want string }{
		{
			name: "first option, comment, wide spacing",
			src:  ".:53 {\n  kubernetes   cluster.local   clusterset.local.   in-addr.arpa {\n    multicluster  clusterset.local # mcs\n    pods insecure\n  }\n}\n",
			want: ".:53 {\n  kubernetes   cluster.local   in-addr.arpa {\n    pods insecure\n  }\n}\n",
		},
		{
			name: "zone before the cluster domain",
			src:  ".:53 {\n  kubernetes clusterset.local cluster.local {\n    multicluster clusterset.local\n    ttl 5\n  }\n}\n",
			want: ".:53 {\n  kubernetes cluster.local {\n    ttl 5\n  }\n}\n",
		},
		{
			name: "on the line of the brace",
			src:  ".:53 {\n  kubernetes cluster.local clusterset.local { multicluster clusterset.local\n  }\n}\n",
			want: ".:53 {\n  kubernetes cluster.local {\n  }\n}\n",
		},
		{
			name: "among other zones",
			src:  ".:53 {\n  kubernetes cluster.local clusterset.local x.y {\n    multicluster clusterset.local x.y\n  }\n}\n",
			want: ".:53 {\n  kubernetes cluster.local x.y {\n    multicluster x.y\n  }\n}\n",
		},
		{
			name: "keys with commas, one a line",
			src:  "cluster.local:53,\nclusterset.local:53 {\n  kubernetes cluster.local clusterset.local {\n    multicluster clusterset.local\n    ttl 5\n  }\n}\n",
			want: "cluster.local:53 {\n  kubernetes cluster.local {\n    ttl 5\n  }\n}\n",
		},
		{
			name: "key first",
			src:  "clusterset.local:53 cluster.local:53 {\n  kubernetes {\n    multicluster clusterset.local\n    ttl 5\n  }\n}\n",
			want: "cluster.local:53 {\n  kubernetes {\n    ttl 5\n  }\n}\n",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Disable(tt.src, "")
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("disabled (-want +got):\n%s", diff)
			}
		})
	}
}

func TestInspect(t *testing.T) {
	const enabled = ".:53 {\n  kubernetes cluster.local clusterset.local {\n    multicluster clusterset.local\n  }\n  reload\n}\n"
	for _, tt := range []struct {
		name, src string
		want      Inspection
	}{
		{name: "enabled", src: enabled, want: Inspection{ClusterDomain: "cluster.local", State: Enabled, Reload: true}},
		{
			name: "disabled, another cluster domain",
			src:  ".:53 {\n  kubernetes corp.example. in-addr.arpa\n}\n",
			want: Inspection{ClusterDomain: "corp.example", State: Disabled, Missing: []string{
				"line 2: the kubernetes plugin does not serve the zone clusterset.local",
				"line 2: the kubernetes plugin lacks the option \"multicluster clusterset.local\"",
			}},
		},
		{
			name: "one of two server blocks",
			src:  enabled + ".:1053 {\n  kubernetes cluster.local clusterset.local\n}\n",
			want: Inspection{ClusterDomain: "cluster.local", State: Partial, Reload: true, Missing: []string{
				"line 8: the kubernetes plugin lacks the option \"multicluster clusterset.local\"",
			}},
		},
		{
			name: "the server block receives no queries",
			src:  "cluster.local {\n  kubernetes cluster.local clusterset.local {\n    multicluster clusterset.local\n  }\n}\n",
			want: Inspection{ClusterDomain: "cluster.local", State: Partial, Missing: []string{
				"line 1: the server block of \"cluster.local\" gets no queries for clusterset.local",
			}},
		},
		{
			name: "a server block of its own",
			src: ".:53 {\n  kubernetes cluster.local\n}\nclusterset.local:53 {\n  kubernetes clusterset.local {\n" +
				"    multicluster clusterset.local\n  }\n}\n",
			want: Inspection{ClusterDomain: "cluster.local", State: Enabled},
		},
		{
			name: "a later multicluster line wins",
			src:  ".:53 {\n  kubernetes cluster.local clusterset.local x.y {\n    multicluster clusterset.local\n    multicluster x.y\n  }\n}\n",
			want: Inspection{ClusterDomain: "cluster.local", State: Partial, Missing: []string{
				"line 2: the kubernetes plugin lacks the option \"multicluster clusterset.local\"",
			}},
		},
		{
			name: "a server block on another port",
			src:  ".:53 {\n  kubernetes cluster.local clusterset.local {\n    multicluster clusterset.local\n  }\n}\nclusterset.local:5353 {\n  whoami\n}\n",
			want: Inspection{ClusterDomain: "cluster.local", State: Enabled},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Inspect(tt.src, "")
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("inspection (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAnswersZone(t *testing.T) {
	nodeLocal := "cluster.local:53 {\n  forward . 172.20.0.10\n}\n.:53 {\n  forward . /etc/resolv.conf\n}\n"
	for src, want := range map[string]bool{
		nodeLocal: false,
		nodeLocal + "clusterset.local:53 {\n  forward . 172.20.0.10\n}\n": true,
	} {
		if got, err := AnswersZone(src, Zone); err != nil || got != want {
			t.Errorf("AnswersZone = %v, %v, want %v for:\n%s", got, err, want, src)
		}
	}
}

func TestVersion(t *testing.T) {
	for _, tt := range []struct {
		image, want string
		supports    bool
	}{
		{image: "registry.k8s.io/coredns/coredns:v1.15.0", want: "1.15.0", supports: true},
		{image: "602401143452.dkr.ecr.eu-west-1.amazonaws.com/eks/coredns:v1.12.2-eksbuild.3", want: "1.12.2", supports: true},
		{image: "602401143452.dkr.ecr.eu-west-1.amazonaws.com/eks/coredns:1.11.4-eksbuild.2", want: "1.11.4"},
		{image: "rancher/mirrored-coredns-coredns:1.12.1", want: "1.12.1"},
		{image: "rancher/hardened-coredns:v1.13.1-build20260101@sha256:0123", want: "1.13.1", supports: true},
		{image: "localhost:5000/coredns"},
		{image: "coredns/coredns:latest"},
		{image: "coredns/coredns@sha256:0123"},
		{image: "example.com/coredns:2026"},
		{image: "example.com/coredns:1.12"},
	} {
		if got := ImageVersion(tt.image); got != tt.want || Supports(got) != tt.supports {
			t.Errorf("%s: version %q (supports %v), want %q (%v)", tt.image, got, Supports(got), tt.want, tt.supports)
		}
	}
}
