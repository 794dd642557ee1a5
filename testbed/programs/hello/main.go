// Hello is the web server of the walk-through. It answers every request like
// nginxdemos/hello:plain-text does: with the address and the name of the Pod that answers. Tests
// can make it not ready, and it can echo over TCP and UDP.
//
//	GET  /anything             the five lines
//	GET  /ready                200, or 503 after
//	POST /ready?ok=false       … until ?ok=true
//
// Flags: --http :80, --echo-tcp :PORT, --echo-udp :PORT (both off by default). An echo server
// answers each line, or datagram, with the Pod's name and the received data.
package main

import (
	"bufio"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

func main() {
	httpAddr := flag.String("http", ":80", "address of the web server")
	tcpAddr := flag.String("echo-tcp", "", "address of the TCP echo server; empty: none")
	udpAddr := flag.String("echo-udp", "", "address of the UDP echo server; empty: none")
	flag.Parse()
	name, err := os.Hostname()
	if err != nil {
		log.Fatal(err)
	}
	failed := make(chan error)
	go func() { failed <- http.ListenAndServe(*httpAddr, newHandler(name)) }()
	if *tcpAddr != "" {
		listener, err := net.Listen("tcp", *tcpAddr)
		if err != nil {
			log.Fatal(err)
		}
		go func() { failed <- echoTCP(listener, name) }()
	}
	if *udpAddr != "" {
		conn, err := net.ListenPacket("udp", *udpAddr)
		if err != nil {
			log.Fatal(err)
		}
		go func() { failed <- echoUDP(conn, name) }()
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	select {
	case err := <-failed:
		log.Fatal(err)
	case <-stop:
	}
}

func newHandler(name string) http.Handler {
	var notReady atomic.Bool
	mux := http.NewServeMux()
	mux.HandleFunc("GET /ready", func(w http.ResponseWriter, _ *http.Request) {
		if notReady.Load() {
			http.Error(w, "not ready", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ready")
	})
	mux.HandleFunc("POST /ready", func(w http.ResponseWriter, r *http.Request) {
		ok, err := strconv.ParseBool(r.FormValue("ok"))
		if err != nil {
			http.Error(w, "expected ?ok=true or ?ok=false", http.StatusBadRequest)
			return
		}
		notReady.Store(!ok)
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { greet(w, r, name) })
	return mux
}

func greet(w http.ResponseWriter, r *http.Request, name string) {
	address := "unknown"
	if local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok {
		address = local.String()
	}
	id := make([]byte, 16)
	rand.Read(id) // never fails
	w.Header().Set("Content-Type", "text/plain")
	w.Header().Set("Cache-Control", "no-cache")
	fmt.Fprintf(w, "Server address: %s\nServer name: %s\nDate: %s\nURI: %s\nRequest ID: %s\n",
		address, name, time.Now().UTC().Format("02/Jan/2006:15:04:05 -0700"), r.RequestURI, hex.EncodeToString(id))
}

func echoTCP(listener net.Listener, name string) error {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer conn.Close()
			for lines := bufio.NewScanner(conn); lines.Scan(); {
				if _, err := fmt.Fprintf(conn, "%s: %s\n", name, lines.Text()); err != nil {
					return
				}
			}
		}()
	}
}

func echoUDP(conn net.PacketConn, name string) error {
	buf := make([]byte, 64<<10) // the largest datagram
	for {
		n, from, err := conn.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return err
		}
		if err != nil {
			continue // an earlier answer was refused; the next datagram may be fine
		}
		text := strings.TrimRight(string(buf[:n]), "\n")
		if _, err := conn.WriteTo([]byte(name+": "+text+"\n"), from); err != nil {
			log.Printf("answering %s: %v", from, err)
		}
	}
}
