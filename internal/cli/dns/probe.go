package dns

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	corev1 "k8s.io/api/core/v1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/session"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/coredns"
)

// versionName has a TXT record wherever clusterset.local is served: the DNS specification of the
// Multi-Cluster Services API requires it, so it exists before any service is exported.
const versionName = "dns-version." + coredns.Zone + "."

// probeTimeout limits one query. CoreDNS answers from memory; a query that takes longer went to an
// unreachable upstream resolver.
const probeTimeout = 5 * time.Second

// probePod queries a CoreDNS pod over TCP through port-forward and reports whether it answers for
// clusterset.local.
func probePod(ctx context.Context, k *session.Cluster, pod *corev1.Pod) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	answered := false
	err := k.ForwardPort(ctx, pod, session.ContainerPort(pod, "dns-tcp", 53), func(conn io.ReadWriter) (err error) {
		answered, err = queryVersion(conn)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("querying pod %s/%s for %s: %w", pod.Namespace, pod.Name, versionName, err)
	}
	return answered, nil
}

// queryVersion queries versionName over a TCP connection and reports whether there is an answer. A
// refused query, an unknown name and a failure of the resolver are no answer; a broken connection
// is an error.
func queryVersion(conn io.ReadWriter) (bool, error) {
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
	// over TCP, the length precedes a message
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
