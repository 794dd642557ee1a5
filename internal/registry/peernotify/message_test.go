package peernotify

import (
	"errors"
	"math"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const token = "TOKENTOKENTOKENTOKENTOKENT"

var someMessage = Message{ClusterSet: "set1", From: "cls1", Generation: 1_795_212_000_123, Sequence: 1_795_212_000_123_456_789}

func TestMessageRoundTrip(t *testing.T) {
	long := Message{
		ClusterSet: strings.Repeat("s", 63), From: strings.Repeat("c", 63),
		Generation: math.MinInt64, Sequence: math.MinInt64,
	}
	for name, want := range map[string]Message{"typical": someMessage, "longest": long, "zero": {ClusterSet: "a", From: "b"}} {
		t.Run(name, func(t *testing.T) {
			datagram := want.Encode(token)
			if len(datagram) > MaxSize {
				t.Errorf("%d bytes, want at most %d", len(datagram), MaxSize)
			}
			got, err := Decode(datagram, token)
			if err != nil || got != want {
				t.Errorf("%q is %+v, error %v; want %+v", datagram, got, err, want)
			}
		})
	}
}

func TestDecodeRefuses(t *testing.T) {
	good := string(someMessage.Encode(token))
	if !strings.HasPrefix(good, "mcs-notify/1 set1 cls1 1795212000123 1795212000123456789 ") {
		t.Fatalf("the datagram is %q", good)
	}
	another := someMessage
	another.Generation++
	tests := map[string]struct {
		datagram string
		want     error
	}{
		"no bytes":              {"", ErrMalformed},
		"garbage":               {"\x00\xff garbage", ErrMalformed},
		"too large":             {good + strings.Repeat("A", MaxSize), ErrMalformed},
		"another version":       {strings.Replace(good, "/1", "/2", 1), ErrMalformed},
		"a word too few":        {good[:strings.LastIndex(good, " ")], ErrMalformed},
		"a word too many":       {good + " more", ErrMalformed},
		"no cluster ID":         {strings.Replace(good, "cls1", "Cls_1", 1), ErrMalformed},
		"no clusterset ID":      {strings.Replace(good, "set1", "", 1), ErrMalformed},
		"no generation":         {strings.Replace(good, "1795212000123 ", "x ", 1), ErrMalformed},
		"too large a number":    {strings.Replace(good, "1795212000123 ", "9999999999999999999 ", 1), ErrMalformed},
		"no sequence":           {strings.Replace(good, "1795212000123456789", "1e9", 1), ErrMalformed},
		"another generation":    {strings.Replace(good, "1795212000123 ", "1795212000124 ", 1), ErrForged},
		"another sender":        {strings.Replace(good, "cls1", "cls2", 1), ErrForged},
		"another notation":      {strings.Replace(good, " 1795212000123 ", " +1795212000123 ", 1), ErrForged},
		"another token":         {string(someMessage.Encode(NewToken())), ErrForged},
		"without a code":        {good[:strings.LastIndex(good, " ")+1], ErrForged},
		"the code of another":   {good[:strings.LastIndex(good, " ")] + string(another.Encode(token))[strings.LastIndex(good, " "):], ErrForged},
		"a trailing newline":    {good + "\n", ErrForged},
		"a code that is longer": {good + "AAAA", ErrForged},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got, err := Decode([]byte(tc.datagram), token); !errors.Is(err, tc.want) {
				t.Errorf("%q is %+v, error %v; want %v", tc.datagram, got, err, tc.want)
			}
		})
	}
}

// FuzzDecode checks that Decode accepts only datagrams that Encode makes.
func FuzzDecode(f *testing.F) {
	f.Add(someMessage.Encode(token))
	f.Add(someMessage.Encode("another token"))
	f.Add([]byte("mcs-notify/1 a b 0 0 "))
	f.Add([]byte("mcs-notify/1  b 00 -0 AAAA"))
	f.Fuzz(func(t *testing.T, datagram []byte) {
		m, err := Decode(datagram, token)
		if err == nil && string(m.Encode(token)) != string(datagram) {
			t.Errorf("%q decodes to %+v, which encodes to %q", datagram, m, m.Encode(token))
		}
		if err != nil && m != (Message{}) {
			t.Errorf("%q is refused, but the message is %+v", datagram, m)
		}
	})
}

func TestParseContact(t *testing.T) {
	tests := map[string]struct {
		value   string
		want    netip.AddrPort
		wantErr string
	}{
		"IPv4":                {"10.10.0.5:8479 " + token, netip.MustParseAddrPort("10.10.0.5:8479"), ""},
		"IPv6":                {"[2001:db8::5]:8479 " + token, netip.MustParseAddrPort("[2001:db8::5]:8479"), ""},
		"IPv4 in IPv6":        {"[::ffff:10.10.0.5]:8479 " + token, netip.MustParseAddrPort("10.10.0.5:8479"), ""},
		"loopback":            {"127.0.0.1:8479 " + token, netip.MustParseAddrPort("127.0.0.1:8479"), ""},
		"a name":              {"example.com:8479 " + token, netip.AddrPort{}, "not an IP address and port"},
		"no port":             {"10.10.0.5 " + token, netip.AddrPort{}, "not an IP address and port"},
		"port 0":              {"10.10.0.5:0 " + token, netip.AddrPort{}, "no port"},
		"unspecified":         {"0.0.0.0:8479 " + token, netip.AddrPort{}, "unspecified"},
		"the metadata server": {"169.254.169.254:80 " + token, netip.AddrPort{}, "link-local"},
		"link-local IPv6":     {"[fe80::1%eth0]:8479 " + token, netip.AddrPort{}, "zone"},
		"multicast":           {"224.0.0.1:8479 " + token, netip.AddrPort{}, "multicast"},
		"broadcast":           {"255.255.255.255:8479 " + token, netip.AddrPort{}, "broadcast"},
		"disguised broadcast": {"[::ffff:255.255.255.255]:8479 " + token, netip.AddrPort{}, "broadcast"},
		"no token":            {"10.10.0.5:8479", netip.AddrPort{}, "token"},
		"a short token":       {"10.10.0.5:8479 abc", netip.AddrPort{}, "token"},
		"an odd token":        {"10.10.0.5:8479 " + token + " " + token, netip.AddrPort{}, "token"},
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
			if want := (Contact{Address: tc.want, Token: token}); err != nil || got != want {
				t.Errorf("%+v, error %v; want %+v", got, err, want)
			}
			if again, err := ParseContact(got.String()); err != nil || again != got {
				t.Errorf("written and read again: %s", cmp.Diff(got.String(), again.String()))
			}
		})
	}
}

func FuzzParseContact(f *testing.F) {
	f.Add("10.10.0.5:8479 " + token)
	f.Add("[2001:db8::5]:8479 " + token)
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
		return Contact{Address: netip.MustParseAddrPort(address), Token: token}
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
