package main

import (
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

// TestProbeAddresses checks which responses are the expected ones.
func TestProbeAddresses(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/metrics" {
			http.NotFound(w, r)
			return
		}
		fmt.Fprint(w, "# HELP cloud_map_mcs_member 1\ncloud_map_mcs_member 0\n")
	}))
	defer server.Close()
	gone := httptest.NewServer(nil)
	gone.Close()

	tests := map[string]struct {
		url, line string
		wantErr   string
	}{
		"any response":  {server.URL + "/metrics", "", ""},
		"host name":     {strings.Replace(server.URL, "127.0.0.1", "localhost", 1) + "/metrics", "", ""},
		"expected line": {server.URL + "/metrics", "cloud_map_mcs_member ", ""},
		"other line":    {server.URL + "/metrics", "cloud_map_mcs_member 1", `begins with "cloud_map_mcs_member 1"`},
		"other status":  {server.URL, "", "404 Not Found"},
		"no listener":   {gone.URL, "", "connection refused"},
		"unknown host":  {"http://name.invalid/", "", "resolving"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			target, err := url.Parse(tt.url)
			if err != nil {
				t.Fatal(err)
			}
			_, err = (&prober{target: target, line: tt.line}).probeAddresses(t.Context())
			if (err == nil) != (tt.wantErr == "") || err != nil && !strings.Contains(err.Error(), tt.wantErr) {
				t.Errorf("requesting %s for a line %q: %v, want %q", tt.url, tt.line, err, tt.wantErr)
			}
		})
	}
}

// TestProbeRetries: the request is repeated until the response is the expected one.
func TestProbeRetries(t *testing.T) {
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, "cloud_map_mcs_member %d\n", min(asked.Add(1)-1, 1))
	}))
	defer server.Close()
	if got := start([]string{probeCommand, "--contains=cloud_map_mcs_member 1", server.URL}); got != 0 || asked.Load() != 2 {
		t.Errorf("exits with %d after %d requests, want 0 after 2", got, asked.Load())
	}
}

func TestProbeExitCodes(t *testing.T) {
	server := httptest.NewServer(nil)
	server.Close()
	tests := map[string]struct {
		args []string
		want int
		says string
	}{
		"timeout":                {[]string{"--timeout=10ms", server.URL}, 1, "FAILED: "},
		"help":                   {[]string{"--help"}, 0, "--timeout"},
		"no URL":                 {nil, 2, "usage: probe"},
		"another scheme":         {[]string{"ftp://localhost"}, 2, "usage: probe"},
		"two URLs":               {[]string{server.URL, server.URL}, 2, "usage: probe"},
		"flag of the controller": {[]string{"--registry=etcd", server.URL}, 2, "unknown flag"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			if got := probe(tt.args, &out); got != tt.want || !strings.Contains(out.String(), tt.says) {
				t.Errorf("probe %q exits with %d, want %d, and %q in:\n%s", tt.args, got, tt.want, tt.says, &out)
			}
		})
	}
}

// TestProbe_SendsToken probes an HTTPS server that requires a token.
func TestProbe_SendsToken(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" {
			http.Error(w, "Unauthorized", http.StatusUnauthorized)
		}
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	dir := t.TempDir()
	write := func(name string, content []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	token := write("token", []byte("secret\n"))
	ca := write("ca.crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	tests := map[string]struct {
		p       prober
		wantErr string
	}{
		"token and authority":     {prober{tokenFile: token, caFile: ca}, ""},
		"any certificate":         {prober{tokenFile: token, insecure: true}, ""},
		"no token":                {prober{caFile: ca}, "401 Unauthorized"},
		"unknown authority":       {prober{tokenFile: token}, "certificate"},
		"no file with a token":    {prober{tokenFile: filepath.Join(dir, "none"), caFile: ca}, "reading the token"},
		"no file of an authority": {prober{caFile: filepath.Join(dir, "none")}, "reading the certificate authorities"},
		"no authority in a file":  {prober{caFile: token}, "has no PEM certificate"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var err error
			if tt.p.target, err = url.Parse(server.URL); err != nil {
				t.Fatal(err)
			}
			_, err = tt.p.probeAddresses(t.Context())
			if (err == nil) != (tt.wantErr == "") || err != nil && !strings.Contains(err.Error(), tt.wantErr) {
				t.Errorf("%v, want %q", err, tt.wantErr)
			}
		})
	}
}
