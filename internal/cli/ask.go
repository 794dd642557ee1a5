package cli

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/coredns"
)

// versionName has a TXT record wherever clusterset.local is served: the DNS specification of the Multi-Cluster Services
// API demands it, so it can be asked for before any service is exported.
const versionName = "dns-version." + coredns.Zone + "."

// askTimeout bounds one question. CoreDNS answers from memory; what takes this long went to a dead upstream resolver.
const askTimeout = 5 * time.Second

// An asker finds out whether one CoreDNS pod answers for clusterset.local.
type asker func(ctx context.Context, pod *corev1.Pod) (bool, error)

// askThrough asks a pod by DNS over TCP through the API server's port-forward: no test pod, no image, and it works from
// wherever kubectl works.
func askThrough(config *rest.Config, kube kubernetes.Interface) asker {
	return func(ctx context.Context, pod *corev1.Pod) (bool, error) {
		ctx, cancel := context.WithTimeout(ctx, askTimeout)
		defer cancel()
		answered, err := throughPort(ctx, config, kube, pod, dnsPort(pod), exchange)
		if err != nil {
			return false, fmt.Errorf("asking pod %s/%s for %s: %w", pod.Namespace, pod.Name, versionName, err)
		}
		return answered, nil
	}
}

// throughPort talks to a port of a pod through the API server's port-forward until ctx ends.
func throughPort[T any](
	ctx context.Context, config *rest.Config, kube kubernetes.Interface, pod *corev1.Pod, port int32, talk func(io.ReadWriter) (T, error),
) (T, error) {
	conn, err := forward(config, kube, pod)
	if err != nil {
		var none T
		return none, fmt.Errorf("reaching it by port-forward: %w", err)
	}
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	said, err := overPort(conn, port, talk)
	if err != nil {
		return said, errors.Join(ctx.Err(), err)
	}
	return said, nil
}

// forward opens a port-forward connection as kubectl does: WebSocket, or SPDY where the API server is too old for it.
func forward(config *rest.Config, kube kubernetes.Interface, pod *corev1.Pod) (httpstream.Connection, error) {
	url := kube.CoreV1().RESTClient().Post().Resource("pods").Namespace(pod.Namespace).Name(pod.Name).SubResource("portforward").URL()
	transport, upgrader, err := spdy.RoundTripperFor(config)
	if err != nil {
		return nil, err
	}
	overWebSocket, err := portforward.NewSPDYOverWebsocketDialerForStreaming(url, config)
	if err != nil {
		return nil, err
	}
	overSPDY := spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, http.MethodPost, url)
	dialer := portforward.NewFallbackDialerForStreaming(overWebSocket, overSPDY, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
	conn, _, err := dialer.Dial(portforward.PortForwardProtocolV1Name)
	return conn, err
}

// overPort talks to a port of the pod over a data stream of a port-forward connection. The error stream beside it carries
// what the kubelet has to say when it cannot reach the port.
func overPort[T any](conn httpstream.Connection, port int32, talk func(io.ReadWriter) (T, error)) (T, error) {
	var none T
	headers := http.Header{}
	headers.Set(corev1.PortHeader, strconv.Itoa(int(port)))
	headers.Set(corev1.PortForwardRequestIDHeader, "0")
	headers.Set(corev1.StreamType, corev1.StreamTypeError)
	problems, err := conn.CreateStream(headers)
	if err != nil {
		return none, err
	}
	_ = problems.Close() // the write side: only the kubelet speaks here
	headers.Set(corev1.StreamType, corev1.StreamTypeData)
	data, err := conn.CreateStream(headers)
	if err != nil {
		return none, err
	}
	said, err := talk(data)
	if err == nil {
		return said, nil
	}
	_ = conn.Close() // ends the read below when the kubelet has nothing to say
	problem, _ := io.ReadAll(problems)
	if len(problem) > 0 {
		err = errors.New(strings.TrimSpace(string(problem)))
	}
	return none, err
}

// dnsPort is the pod's TCP port for DNS: by its usual name, or the standard one.
func dnsPort(pod *corev1.Pod) int32 { return portNamed(pod, "dns-tcp", 53) }

// exchange asks for versionName with DNS's TCP framing, a length before each message, and tells whether there is an
// answer. A refusal, an unknown name or a resolver's failure is a no; a broken connection is an error.
func exchange(conn io.ReadWriter) (bool, error) {
	query := dnsmessage.Message{
		Header: dnsmessage.Header{ID: 1, RecursionDesired: true},
		Questions: []dnsmessage.Question{{
			Name: dnsmessage.MustNewName(versionName), Type: dnsmessage.TypeTXT, Class: dnsmessage.ClassINET,
		}},
	}
	packed, err := query.Pack()
	if err != nil {
		return false, err
	}
	framed := append(binary.BigEndian.AppendUint16(nil, uint16(len(packed))), packed...)
	if _, err := io.Copy(conn, bytes.NewReader(framed)); err != nil {
		return false, err
	}
	var length uint16
	if err := binary.Read(conn, binary.BigEndian, &length); err != nil {
		return false, err
	}
	reply := make([]byte, length)
	if _, err := io.ReadFull(conn, reply); err != nil {
		return false, err
	}
	var message dnsmessage.Message
	if err := message.Unpack(reply); err != nil {
		return false, err
	}
	return message.RCode == dnsmessage.RCodeSuccess && len(message.Answers) > 0, nil
}
