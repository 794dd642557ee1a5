package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"
)

// probeCommand is a subcommand for pods that test an installation: the image contains neither a
// shell nor curl.
const probeCommand = "probe"

// probe requests a URL until one of the addresses of its host returns the expected response. The
// exit codes are those of start.
func probe(args []string, out io.Writer) int {
	flags := pflag.NewFlagSet(probeCommand, pflag.ContinueOnError)
	flags.SetOutput(out)
	timeout := flags.Duration("timeout", time.Minute, "Time after which the probe fails.")
	var p prober
	flags.StringVar(&p.line, "contains", "", "Prefix that a line of the response must have (default: any response succeeds).")
	flags.StringVar(&p.tokenFile, "token-file", "", "File with the bearer token to send.")
	flags.StringVar(&p.caFile, "ca", "", "File with the certificate authorities of the server (default: the system's).")
	flags.BoolVar(&p.insecure, "insecure-skip-verify", false, "Accept any certificate, such as a self-signed one.")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			return 0
		}
		fmt.Fprintln(out, err)
		return 2
	}
	target, err := url.Parse(flags.Arg(0))
	if err != nil || flags.NArg() != 1 || target.Scheme != "http" && target.Scheme != "https" || target.Host == "" {
		fmt.Fprintf(out, "usage: probe [flags] http[s]://host:port/path\n%s", flags.FlagUsages())
		return 2
	}
	p.target = target
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()
	if err := p.probeUntil(ctx, out); err != nil {
		fmt.Fprintf(out, "FAILED: %v\n", err)
		return 1
	}
	return 0
}

// prober requests a URL.
type prober struct {
	target *url.URL
	// line is the prefix that a line of the response must have.
	line string
	// tokenFile and caFile may be "".
	tokenFile, caFile string
	// insecure accepts any certificate of the server.
	insecure bool
}

// probeUntil sends a request every second. It returns the last error before ctx ended.
func (p *prober) probeUntil(ctx context.Context, out io.Writer) error {
	for {
		address, err := p.probeAddresses(ctx)
		if err == nil {
			fmt.Fprintf(out, "OK: %s at %s\n", p.target, address)
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(time.Second):
		}
	}
}

// probeAddresses requests all addresses of the target's host, such as those of a headless Service,
// and returns the first one with the expected response.
func (p *prober) probeAddresses(ctx context.Context) (netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	addresses, err := net.DefaultResolver.LookupNetIP(ctx, "ip", p.target.Hostname())
	if err != nil {
		return netip.Addr{}, fmt.Errorf("resolving the host of %s: %w", p.target, err)
	}
	var problems []error
	for _, address := range addresses {
		err := p.probeAddress(ctx, address)
		if err == nil {
			return address.Unmap(), nil
		}
		problems = append(problems, fmt.Errorf("%s at %s: %w", p.target, address.Unmap(), err))
	}
	return netip.Addr{}, errors.Join(problems...)
}

// maxResponse exceeds the metrics of a controller with thousands of services.
const maxResponse = 16 << 20

func (p *prober) probeAddress(ctx context.Context, address netip.Addr) error {
	transport, err := p.transportTo(address)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.target.String(), nil)
	if err != nil {
		return err
	}
	if p.tokenFile != "" {
		token, err := os.ReadFile(p.tokenFile)
		if err != nil {
			return fmt.Errorf("reading the token: %w", err)
		}
		req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
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
	case !hasLine(body, p.line):
		return fmt.Errorf("no line of the response begins with %q", p.line)
	}
	return nil
}

// transportTo returns a transport that connects to address, and verifies the certificate for the
// target's host.
func (p *prober) transportTo(address netip.Addr) (*http.Transport, error) {
	port := cmp.Or(p.target.Port(), map[string]string{"http": "80", "https": "443"}[p.target.Scheme])
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, net.JoinHostPort(address.String(), port))
		},
		TLSClientConfig: &tls.Config{InsecureSkipVerify: p.insecure}, //nolint:gosec // the caller asks for it
	}
	if p.caFile != "" {
		authorities, err := os.ReadFile(p.caFile)
		if err != nil {
			return nil, fmt.Errorf("reading the certificate authorities: %w", err)
		}
		transport.TLSClientConfig.RootCAs = x509.NewCertPool()
		if !transport.TLSClientConfig.RootCAs.AppendCertsFromPEM(authorities) {
			return nil, fmt.Errorf("reading the certificate authorities: %s has no PEM certificate", p.caFile)
		}
	}
	return transport, nil
}

func hasLine(body []byte, prefix string) bool {
	for line := range bytes.Lines(body) {
		if strings.HasPrefix(string(line), prefix) {
			return true
		}
	}
	return prefix == ""
}
