package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"
)

// A PortForwarder opens a connection to a port of a pod through the API server, calls use with it
// until ctx ends, and closes it. Port-forward needs no extra pod or image, and works from
// everywhere where kubectl works.
type PortForwarder func(ctx context.Context, pod *corev1.Pod, port int32, use func(io.ReadWriter) error) error

func newPortForwarder(config *rest.Config, kube kubernetes.Interface) PortForwarder {
	return func(ctx context.Context, pod *corev1.Pod, port int32, use func(io.ReadWriter) error) error {
		conn, err := dialPod(config, kube, pod)
		if err != nil {
			return fmt.Errorf("opening a port-forward: %w", err)
		}
		defer func() { _ = conn.Close() }()
		stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
		defer stop()
		if err := useStream(conn, port, use); err != nil {
			return errors.Join(ctx.Err(), err)
		}
		return nil
	}
}

// dialPod opens a port-forward connection as kubectl does: WebSocket, or SPDY where the API server
// is too old for it.
func dialPod(config *rest.Config, kube kubernetes.Interface, pod *corev1.Pod) (httpstream.Connection, error) {
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

// useStream calls use with the data stream of a port-forward connection. When that fails, it
// returns the message that the kubelet sent on the error stream, such as a refused connection.
func useStream(conn httpstream.Connection, port int32, use func(io.ReadWriter) error) error {
	headers := http.Header{}
	headers.Set(corev1.PortHeader, strconv.Itoa(int(port)))
	headers.Set(corev1.PortForwardRequestIDHeader, "0")
	headers.Set(corev1.StreamType, corev1.StreamTypeError)
	kubeletErrors, err := conn.CreateStream(headers)
	if err != nil {
		return err
	}
	_ = kubeletErrors.Close() // closes the write side, which is not used
	headers.Set(corev1.StreamType, corev1.StreamTypeData)
	data, err := conn.CreateStream(headers)
	if err != nil {
		return err
	}
	if err = use(data); err == nil {
		return nil
	}
	_ = conn.Close() // ends the read below when the kubelet has sent no message
	message, _ := io.ReadAll(io.LimitReader(kubeletErrors, maxMessage))
	if len(message) > 0 {
		return errors.New(strings.TrimSpace(string(message)))
	}
	return err
}

// maxMessage bounds the message of a kubelet: it is one line.
const maxMessage = 4 << 10

// ContainerPort returns the pod's container port of that name, or fallback if there is none.
func ContainerPort(pod *corev1.Pod, name string, fallback int32) int32 {
	for _, c := range pod.Spec.Containers {
		for _, p := range c.Ports {
			if p.Name == name {
				return p.ContainerPort
			}
		}
	}
	return fallback
}
