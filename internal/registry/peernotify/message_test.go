package peernotify

import (
	"errors"
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var someMessage = Message{ClusterSet: "set1", From: "cls1", Generation: 1_795_212_000_123, Sequence: 1_795_212_000_123_456_789}

// keysOf returns the keys of a cluster.
func keysOf(id string) *Keys {
	secret := make([]byte, SecretSize)
	copy(secret[1:], id) // X25519 ignores three bits of the first byte
	keys, err := NewKeys(secret)
	if err != nil {
		panic(err)
	}
	return keys
}

var sender, receiver = keysOf("cls1"), keysOf("cls2")

// key is a public key.
var key = sender.Public()

func TestMessageRoundTrip(t *testing.T) {
	long := Message{
		ClusterSet: strings.Repeat("s", 63), From: strings.Repeat("c", 63),
		Generation: math.MinInt64, Sequence: math.MinInt64,
	}
	for name, want := range map[string]Message{"typical": someMessage, "longest": long, "zero": {ClusterSet: "a", From: "b"}} {
		t.Run(name, func(t *testing.T) {
			datagram := sender.Encode(want, receiver.Public())
			if len(datagram) > MaxSize {
				t.Errorf("%d bytes, want at most %d", len(datagram), MaxSize)
			}
			got, err := decode(datagram)
			want.Key = key
			if err != nil || got != want || !got.isSigned(datagram, receiver.with(got.Key).code) {
				t.Errorf("%q is %+v, error %v; want %+v, signed", datagram, got, err, want)
			}
		})
	}
}

func TestDecodeRefuses(t *testing.T) {
	good := string(sender.Encode(someMessage, receiver.Public()))
	if !strings.HasPrefix(good, "mcs-notify/2 set1 cls1 "+key+" 1795212000123 1795212000123456789 ") {
		t.Fatalf("the datagram is %q", good)
	}
	another := someMessage
	another.Generation++
	code := func(datagram []byte) string { return string(datagram[strings.LastIndex(string(datagram), " "):]) }
	malformed, forged := ErrMalformed, error(nil)
	tests := map[string]struct {
		datagram string
		want     error
	}{
		"no bytes":                  {"", malformed},
		"garbage":                   {"\x00\xff garbage", malformed},
		"too large":                 {good + strings.Repeat("A", MaxSize), malformed},
		"another version":           {strings.Replace(good, "/2", "/1", 1), malformed},
		"a word too few":            {good[:strings.LastIndex(good, " ")], malformed},
		"a word too many":           {good + " more", malformed},
		"no cluster ID":             {strings.Replace(good, "cls1", "Cls_1", 1), malformed},
		"no clusterset ID":          {strings.Replace(good, "set1", "", 1), malformed},
		"no key":                    {strings.Replace(good, key, "key", 1), malformed},
		"no generation":             {strings.Replace(good, "1795212000123 ", "x ", 1), malformed},
		"too large a number":        {strings.Replace(good, "1795212000123 ", "9999999999999999999 ", 1), malformed},
		"no sequence":               {strings.Replace(good, "1795212000123456789", "1e9", 1), malformed},
		"another generation":        {strings.Replace(good, "1795212000123 ", "1795212000124 ", 1), forged},
		"another sender":            {strings.Replace(good, "cls1", "cls2", 1), forged},
		"another key":               {strings.Replace(good, key, keysOf("cls3").Public(), 1), forged},
		"another notation":          {strings.Replace(good, " 1795212000123 ", " +1795212000123 ", 1), forged},
		"for another receiver":      {string(sender.Encode(someMessage, keysOf("cls3").Public())), forged},
		"without a code":            {good[:strings.LastIndex(good, " ")+1], forged},
		"the code of another":       {good[:strings.LastIndex(good, " ")] + code(sender.Encode(another, receiver.Public())), forged},
		"the code of a third party": {good[:strings.LastIndex(good, " ")] + code(keysOf("cls3").Encode(someMessage, receiver.Public())), forged},
		"a trailing newline":        {good + "\n", forged},
		"a code that is longer":     {good + "AA", forged},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := decode([]byte(tc.datagram))
			if !errors.Is(err, tc.want) {
				t.Fatalf("%q is %+v, error %v; want %v", tc.datagram, got, err, tc.want)
			}
			if err == nil && got.isSigned([]byte(tc.datagram), receiver.with(got.Key).code) {
				t.Errorf("%q counts as signed", tc.datagram)
			}
		})
	}
}

// FuzzDecode checks that only datagrams that Encode makes count as signed.
func FuzzDecode(f *testing.F) {
	f.Add(sender.Encode(someMessage, receiver.Public()))
	f.Add(sender.Encode(someMessage, keysOf("cls3").Public()))
	f.Add([]byte("mcs-notify/2 a b " + key + " 0 0 "))
	f.Add([]byte("mcs-notify/2  b " + key + " 00 -0 AAAA"))
	f.Fuzz(func(t *testing.T, datagram []byte) {
		m, err := decode(datagram)
		if err != nil {
			if m != (Message{}) {
				t.Errorf("%q is refused, but the message is %+v", datagram, m)
			}
			return
		}
		if shared := receiver.agree(m.Key).code; shared != nil && m.isSigned(datagram, shared) && string(m.encode(shared)) != string(datagram) {
			t.Errorf("%q decodes to %+v, which encodes to %q", datagram, m, m.encode(shared))
		}
	})
}

// TestKeys: two clusters share a key that no third one has, the same after a restart, and none is
// shared through a point of low order.
func TestKeys(t *testing.T) {
	shared := sender.with(receiver.Public()).code
	if len(shared) == 0 || string(shared) != string(receiver.with(sender.Public()).code) || string(shared) != string(keysOf("cls1").with(receiver.Public()).code) {
		t.Error("the two clusters have different keys")
	}
	if third := keysOf("cls3"); string(third.with(receiver.Public()).code) == string(shared) || string(third.with(sender.Public()).code) == string(shared) {
		t.Error("a third cluster has the key")
	}
	zero := strings.Repeat("A", keyLength)
	if !isKey(zero) || sender.with(zero).code != nil || sender.Encode(someMessage, zero) != nil {
		t.Error("a key is shared through the point zero")
	}
	if _, err := NewKeys([]byte("short")); err == nil {
		t.Error("a short secret makes keys")
	}
}

func receiverAt(address netip.AddrPort) Receiver { return Receiver{Contact: Contact{Address: address}} }

// TestRound: a round has one contact of an IP address, at most maxContacts, and rounds reach all in
// turn.
func TestRound(t *testing.T) {
	var contacts []Receiver
	for i := range 1200 {
		contacts = append(contacts, receiverAt(netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 8479)))
	}
	for port := range 900 {
		contacts = append(contacts, receiverAt(netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), uint16(1000+port))))
	}
	sent := map[netip.Addr]int{}
	position := 0
	for range 3 {
		var round []Receiver
		round, position = Round(slices.Clone(contacts), position)
		if len(round) != maxContacts {
			t.Fatalf("%d contacts in a round, want %d", len(round), maxContacts)
		}
		for _, c := range round {
			sent[c.Address.Addr()]++
		}
	}
	if len(sent) != 1201 || sent[netip.MustParseAddr("192.0.2.1")] > 2 {
		t.Errorf("three rounds reach %d addresses, the repeated one %d times", len(sent), sent[netip.MustParseAddr("192.0.2.1")])
	}
	loopback := []Receiver{receiverAt(netip.MustParseAddrPort("127.0.0.1:1")), receiverAt(netip.MustParseAddrPort("127.0.0.1:2"))}
	if round, next := Round(loopback, 0); len(round) != 2 || next != 0 {
		t.Errorf("of two clusters on one machine the round has %v", round)
	}
}

func TestParseContact(t *testing.T) {
	tests := map[string]struct {
		value   string
		want    netip.AddrPort
		wantErr string
	}{
		"IPv4":                {"10.10.0.5:8479 " + key, netip.MustParseAddrPort("10.10.0.5:8479"), ""},
		"IPv6":                {"[2001:db8::5]:8479 " + key, netip.MustParseAddrPort("[2001:db8::5]:8479"), ""},
		"IPv4 in IPv6":        {"[::ffff:10.10.0.5]:8479 " + key, netip.MustParseAddrPort("10.10.0.5:8479"), ""},
		"loopback":            {"127.0.0.1:8479 " + key, netip.MustParseAddrPort("127.0.0.1:8479"), ""},
		"a name":              {"example.com:8479 " + key, netip.AddrPort{}, "not an IP address and port"},
		"no port":             {"10.10.0.5 " + key, netip.AddrPort{}, "not an IP address and port"},
		"port 0":              {"10.10.0.5:0 " + key, netip.AddrPort{}, "no port"},
		"unspecified":         {"0.0.0.0:8479 " + key, netip.AddrPort{}, "unspecified"},
		"the metadata server": {"169.254.169.254:80 " + key, netip.AddrPort{}, "link-local"},
		"link-local IPv6":     {"[fe80::1%eth0]:8479 " + key, netip.AddrPort{}, "zone"},
		"multicast":           {"224.0.0.1:8479 " + key, netip.AddrPort{}, "multicast"},
		"broadcast":           {"255.255.255.255:8479 " + key, netip.AddrPort{}, "broadcast"},
		"disguised broadcast": {"[::ffff:255.255.255.255]:8479 " + key, netip.AddrPort{}, "broadcast"},
		"no key":              {"10.10.0.5:8479", netip.AddrPort{}, "key"},
		"a short key":         {"10.10.0.5:8479 abc", netip.AddrPort{}, "key"},
		"an odd key":          {"10.10.0.5:8479 " + key + " " + key, netip.AddrPort{}, "key"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := ParseContact(tc.value)
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
					t.Errorf("error %v, want one about %q", err, tc.wantErr)
				}
				return
			}
			if want := (Contact{Address: tc.want, Key: key}); err != nil || got != want {
				t.Errorf("%+v, error %v; want %+v", got, err, want)
			}
			if again, err := ParseContact(got.String()); err != nil || again != got {
				t.Errorf("written and read again: %s", cmp.Diff(got.String(), again.String()))
			}
		})
	}
}

func FuzzParseContact(f *testing.F) {
	f.Add("10.10.0.5:8479 " + key)
	f.Add("[2001:db8::5]:8479 " + key)
	f.Fuzz(func(t *testing.T, value string) {
		c, err := ParseContact(value)
		if err != nil {
			return
		}
		if again, err := ParseContact(c.String()); err != nil || again != c {
			t.Errorf("%q is %s, which is %s, error %v", value, c, again, err)
		}
	})
}

func TestContactReaches(t *testing.T) {
	contact := func(address string) Contact {
		return Contact{Address: netip.MustParseAddrPort(address), Key: key}
	}
	pod, loopback := contact("10.10.0.5:8479"), contact("127.0.0.1:8479")
	for name, tc := range map[string]struct {
		from, to Contact
		want     bool
	}{
		"pod to pod":           {pod, pod, true},
		"pod to loopback":      {pod, loopback, false},
		"loopback to loopback": {loopback, loopback, true},
		"to nowhere":           {pod, Contact{}, false},
	} {
		if got := tc.from.Reaches(tc.to); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}
