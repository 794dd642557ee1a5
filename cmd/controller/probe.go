package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"
)

// probeCommand is a subcommand for pods that test an installation: the image contains neither a shell nor curl.
const probeCommand = "probe"

// probe requests a URL until one of the addresses of its host returns the expected response. The exit codes are those of start.
func probe(args []string, out io.Writer) int {
	flags := pflag.NewFlagSet(probeCommand, pflag.ContinueOnError)
	flags.SetOutput(out)
	timeout := flags.Duration("timeout", time.Minute, "Time after which the probe fails.")
	line := flags.String("contains", "", "Prefix that a line of the response must have (default: any response succeeds).")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			return 0
		}
		fmt.Fprintln(out, err)
		return 2
	}
	target, err := url.Parse(flags.Arg(0))
	if err != nil || flags.NArg() != 1 || target.Scheme != "http" || target.Host == "" {
		fmt.Fprintln(out, "usage: probe [--timeout=1m] [--contains='prefix of a line'] http://host:port/path")
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()
	if err := probeUntil(ctx, target, *line, out); err != nil {
		fmt.Fprintf(out, "FAILED: %v\n", err)
		return 1
	}
	return 0
}

// probeUntil sends a request every second. It returns the last error before ctx ended.
func probeUntil(ctx context.Context, target *url.URL, line string, out io.Writer) error {
	for {
		address, err := probeAddresses(ctx, target, line)
		if err == nil {
			fmt.Fprintf(out, "OK: %s at %s\n", target, address)
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(time.Second):
		}
	}
}

// probeAddresses requests all addresses of the target's host, such as those of a headless Service, and returns the first one with
// the expected response.
func probeAddresses(ctx context.Context, target *url.URL, line string) (netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	addresses, err := net.DefaultResolver.LookupNetIP(ctx, "ip", target.Hostname())
	if err != nil {
		return netip.Addr{}, fmt.Errorf("resolving the host of %s: %w", target, err)
	}
	var problems []error
	for _, address := range addresses {
		err := probeAddress(ctx, target, address, line)
		if err == nil {
			return address.Unmap(), nil
		}
		problems = append(problems, fmt.Errorf("%s at %s: %w", target, address.Unmap(), err))
	}
	return netip.Addr{}, errors.Join(problems...)
}

// maxResponse exceeds the metrics of a controller with thousands of services.
const maxResponse = 16 << 20

func probeAddress(ctx context.Context, target *url.URL, address netip.Addr, line string) error {
	port := target.Port()
	if port == "" {
		port = "80"
	}
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, net.JoinHostPort(address.String(), port))
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return err
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxResponse))
	switch {
	case err != nil:
		return fmt.Errorf("reading the response: %w", err)
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("the response is %s", resp.Status)
	case !hasLine(body, line):
		return fmt.Errorf("no line of the response begins with %q", line)
	}
	return nil
}

func hasLine(body []byte, prefix string) bool {
	for line := range bytes.Lines(body) {
		if strings.HasPrefix(string(line), prefix) {
			return true
		}
	}
	return prefix == ""
}
