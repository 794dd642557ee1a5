package coredns

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var besideIPs = []string{"10.96.0.77", "fd00:96::77"}

// TestForwardSamples forwards the zone in every sample that has braces, and restores it byte for
// byte.
func TestForwardSamples(t *testing.T) {
	for name, src := range samples(t) {
		t.Run(name, func(t *testing.T) {
			forwarded, err := Forward(src, "", besideIPs)
			if name == "no-braces" {
				if err == nil || !strings.Contains(err.Error(), "write braces") {
					t.Errorf("error %v, want one about braces", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(forwarded, src) || !parses(strings.ReplaceAll(forwarded, "import", "#import")) {
				t.Errorf("CoreDNS's parser does not accept it:\n%s", forwarded)
			}
			if again, err := Forward(forwarded, "", besideIPs); err != nil || again != forwarded {
				t.Errorf("forwarding twice: %v\n%s", err, cmp.Diff(forwarded, again))
			}
			if moved, err := Forward(forwarded, "", []string{"10.96.0.78"}); err != nil || strings.Contains(moved, "10.96.0.77") || !strings.Contains(moved, "10.96.0.78") {
				t.Errorf("the address does not change: %v\n%s", err, moved)
			}
			if restored, err := RemoveForward(forwarded, nil); err != nil || restored != src {
				t.Errorf("not restored: %v\n%s", err, cmp.Diff(src, restored))
			}
			if enabled, err := Enable(forwarded, ""); err == nil || !strings.Contains(err.Error(), "dns disable") {
				t.Errorf("enabling a Corefile that forwards: error %v, want one that names dns disable:\n%s", err, enabled)
			}
		})
	}
}

func TestForward(t *testing.T) {
	const own = ".:53 {\n  kubernetes cluster.local\n}\n"
	const note = "# kubectl mcs dns enable --beside\n"
	block := func(keys string) string { return keys + " {\n    errors\n    forward . 10.96.0.77 fd00:96::77\n}" }
	for _, tt := range []struct {
		name, src, want, wantErr string
	}{
		{name: "one port", src: own, want: own + note + block("clusterset.local:53") + "\n"},
		{name: "no final line break", src: strings.TrimSpace(own), want: own + note + block("clusterset.local:53")},
		{name: "no port", src: ". {\n  kubernetes cluster.local\n}\n", want: ". {\n  kubernetes cluster.local\n}\n" + note + block("clusterset.local:53") + "\n"},
		{
			name: "another port, as in Gardener",
			src:  strings.Replace(own, "53", "8053", 1),
			want: strings.Replace(own, "53", "8053", 1) + note + block("clusterset.local:8053") + "\n",
		},
		{
			name: "several ports",
			src:  "cluster.local:53 in-addr.arpa:53 .:1053 {\n  kubernetes cluster.local\n}\n",
			want: "cluster.local:53 in-addr.arpa:53 .:1053 {\n  kubernetes cluster.local\n}\n" + note + block("clusterset.local:53 clusterset.local:1053") + "\n",
		},
		{
			name: "a block to another address is replaced",
			src:  note + "clusterset.local:53 {\n    errors\n    forward . 10.96.0.1\n}\n" + own,
			want: own + note + block("clusterset.local:53") + "\n",
		},
		{
			name: "a block to the same addresses that was written manually is replaced",
			src:  own + "clusterset.local {\n  forward . 10.96.0.77 fd00:96::77 {\n    max_fails 3\n  }\n}\n",
			want: own + note + block("clusterset.local:53") + "\n",
		},
		{name: "another implementation", src: own + "clusterset.local:53 {\n  forward . 10.0.0.9\n}\n", wantErr: "another Multi-Cluster Services implementation"},
		{
			name:    "the kubernetes plugin serves the zone",
			src:     ".:53 {\n  kubernetes cluster.local clusterset.local {\n    multicluster clusterset.local\n  }\n}\n",
			wantErr: `run "kubectl mcs dns disable" first`,
		},
		{name: "no plain DNS", src: "tls://cluster.local {\n  kubernetes cluster.local\n}\n", wantErr: "no server block answers plain DNS queries"},
		{name: "unclosed", src: ".:53 {\n  kubernetes cluster.local\n", wantErr: "no closing brace"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Forward(tt.src, "", besideIPs)
			if tt.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
					t.Errorf("error %v, want %q", err, tt.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("Corefile (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRemoveForward_KeepsOtherBlocks(t *testing.T) {
	const own = ".:53 {\n  kubernetes cluster.local\n}\n"
	for name, tt := range map[string]struct{ src, want string }{
		"another implementation": {own + "clusterset.local:53 {\n  forward . 10.0.0.9\n}\n", own + "clusterset.local:53 {\n  forward . 10.0.0.9\n}\n"},
		"another zone besides":   {own + "clusterset.local a.b {\n  forward . 10.96.0.77 fd00:96::77\n}\n", own + "clusterset.local a.b {\n  forward . 10.96.0.77 fd00:96::77\n}\n"},
		"another block on the same line": {
			own + "clusterset.local {\n  forward . 10.96.0.77 fd00:96::77\n} a.b {\n}\n", own + " a.b {\n}\n",
		},
	} {
		if got, err := RemoveForward(tt.src, besideIPs); err != nil || got != tt.want {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, cmp.Diff(tt.want, got))
		}
	}
}

func TestInspect_ImportedServers(t *testing.T) {
	for src, want := range map[string]bool{
		// AKS
		".:53 {\n  kubernetes cluster.local\n}\nimport custom/*.server\n": true,
		// k3s
		".:53 {\n  kubernetes cluster.local\n}\nimport /etc/coredns/custom/*.server": true,
		// two globs
		"import ../custom/*.server ../custom/*.conf\n.:53 {\n  kubernetes cluster.local\n}": true,
		// within a server block
		".:53 {\n  kubernetes cluster.local\n  import custom/*.server\n}\n": false,
		".:53 {\n  kubernetes cluster.local\n}\nimport custom/*.override\n": false,
	} {
		if found, err := Inspect(src, ""); err != nil || found.ImportsServers != want {
			t.Errorf("ImportsServers = %v, %v, want %v for:\n%s", found.ImportsServers, err, want, src)
		}
	}
}

func TestUpstreams(t *testing.T) {
	for src, want := range map[string][]string{
		"clusterset.local:53 {\n    errors\n    forward . 10.96.0.77 fd00:96::77\n}\n": besideIPs,
		"other.local:53 {\n    forward . 10.96.0.77\n}\n":                              nil,
		"clusterset.local:53 {\n    forward .\n}\n":                                    nil,
		"": nil,
	} {
		if got, err := Upstreams(src); err != nil || !slices.Equal(got, want) {
			t.Errorf("Upstreams = %v, %v, want %v for:\n%s", got, err, want, src)
		}
	}
}

// FuzzForwardIsUndone checks that CoreDNS's own parser accepts a Corefile that forwards the zone,
// and that RemoveForward restores the original byte for byte.
func FuzzForwardIsUndone(f *testing.F) {
	addSamples(f)
	f.Fuzz(func(t *testing.T, src string) {
		if without, err := RemoveForward(src, besideIPs); err != nil || without != src {
			return // it forwards the zone already
		}
		forwarded, err := Forward(src, "", besideIPs)
		if err != nil {
			return
		}
		if restored, err := RemoveForward(forwarded, besideIPs); err != nil || restored != src {
			t.Errorf("not undone: %v\n%s", err, cmp.Diff(src, restored))
		}
		if !strings.Contains(src, "import") && parses(src) && !parses(forwarded) {
			t.Errorf("CoreDNS's parser no longer accepts it:\n%s", forwarded)
		}
	})
}
