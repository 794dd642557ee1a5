package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"testing"
)

func TestGreeting(t *testing.T) {
	server := httptest.NewServer(newHandler("pod-1"))
	defer server.Close()
	body, _ := get(t, server.URL+"/some/path?q=1")
	want := regexp.MustCompile(`^Server address: 127\.0\.0\.1:\d+\nServer name: pod-1\n` +
		`Date: \d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d \+0000\nURI: /some/path\?q=1\nRequest ID: [0-9a-f]{32}\n$`)
	if !want.MatchString(body) {
		t.Errorf("answer is %q", body)
	}
}

func get(t *testing.T, url string) (string, int) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body), resp.StatusCode
}

func TestReadinessCanBeFlipped(t *testing.T) {
	server := httptest.NewServer(newHandler("pod-1"))
	defer server.Close()
	for _, step := range []struct {
		set                string
		wantPost, wantThen int
	}{
		{"ok=false", http.StatusOK, http.StatusServiceUnavailable},
		{"ok=maybe", http.StatusBadRequest, http.StatusServiceUnavailable},
		{"ok=true", http.StatusOK, http.StatusOK},
	} {
		resp, err := http.Post(server.URL+"/ready?"+step.set, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != step.wantPost {
			t.Errorf("POST ?%s: %s", step.set, resp.Status)
		}
		if _, got := get(t, server.URL+"/ready"); got != step.wantThen {
			t.Errorf("after ?%s /ready answers %d, want %d", step.set, got, step.wantThen)
		}
	}
}

func TestEcho(t *testing.T) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	go func() { _ = echoTCP(tcp, "pod-1") }() // ends when the test closes it
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	go func() { _ = echoUDP(udp, "pod-1") }()
	for network, address := range map[string]net.Addr{"tcp": tcp.Addr(), "udp": udp.LocalAddr()} {
		conn, err := net.Dial(network, address.String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintln(conn, "hi")
		if got, err := bufio.NewReader(conn).ReadString('\n'); got != "pod-1: hi\n" {
			t.Errorf("%s echo is %q, %v", network, got, err)
		}
	}
}
