package cli

import (
	"encoding/binary"
	"io"
	"net"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
	corev1 "k8s.io/api/core/v1"
)

func TestExchange(t *testing.T) {
	txt := dnsmessage.Resource{
		Header: dnsmessage.ResourceHeader{Name: dnsmessage.MustNewName(versionName), Type: dnsmessage.TypeTXT, Class: dnsmessage.ClassINET},
		Body:   &dnsmessage.TXTResource{TXT: []string{"1.0.0"}},
	}
	for _, tt := range []struct {
		name    string
		rcode   dnsmessage.RCode
		answers []dnsmessage.Resource
		want    bool
	}{
		{name: "served", rcode: dnsmessage.RCodeSuccess, answers: []dnsmessage.Resource{txt}, want: true},
		{name: "the upstream resolver knows no such name", rcode: dnsmessage.RCodeNameError},
		{name: "no upstream resolver", rcode: dnsmessage.RCodeServerFailure},
		{name: "no data", rcode: dnsmessage.RCodeSuccess},
	} {
		t.Run(tt.name, func(t *testing.T) {
			client, server := net.Pipe()
			defer func() { _ = client.Close() }()
			go reply(t, server, tt.rcode, tt.answers)
			got, err := exchange(client)
			if err != nil || got != tt.want {
				t.Errorf("exchange = %v, %v, want %v", got, err, tt.want)
			}
		})
	}
	t.Run("cut off", func(t *testing.T) {
		client, server := net.Pipe()
		_ = server.Close()
		if _, err := exchange(client); err == nil {
			t.Error("a broken connection is no answer")
		}
	})
}

// reply is a DNS server over TCP for one question.
func reply(t *testing.T, conn net.Conn, rcode dnsmessage.RCode, answers []dnsmessage.Resource) {
	defer func() { _ = conn.Close() }()
	var length uint16
	if err := binary.Read(conn, binary.BigEndian, &length); err != nil {
		t.Error(err)
		return
	}
	query := make([]byte, length)
	if _, err := io.ReadFull(conn, query); err != nil {
		t.Error(err)
		return
	}
	var m dnsmessage.Message
	if err := m.Unpack(query); err != nil || len(m.Questions) != 1 || m.Questions[0].Name.String() != "dns-version.clusterset.local." {
		t.Errorf("question %+v: %v", m.Questions, err)
		return
	}
	m.Response, m.RCode, m.Answers = true, rcode, answers
	packed, err := m.Pack()
	if err != nil {
		t.Error(err)
		return
	}
	if _, err := conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(packed))), packed...)); err != nil {
		t.Error(err)
	}
}

func TestDNSPort(t *testing.T) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Ports: []corev1.ContainerPort{
		{Name: "dns", ContainerPort: 5353}, {Name: "dns-tcp", ContainerPort: 5353},
	}}}}}
	if got := dnsPort(pod); got != 5353 {
		t.Errorf("port %d, want 5353", got)
	}
	if got := dnsPort(&corev1.Pod{}); got != 53 {
		t.Errorf("port %d, want the standard 53", got)
	}
}
