package config

import (
	"errors"
	"testing"
)

func TestPeerNotificationAddress(t *testing.T) {
	tests := map[string]struct {
		options PeerNotifications
		podIP   string
		want    string
		wantErr error
	}{
		"IPv4 pod":        {PeerNotifications{Bind: ":8479"}, "10.10.0.5", "10.10.0.5:8479", nil},
		"IPv6 pod":        {PeerNotifications{Bind: ":99"}, "2001:db8::5", "[2001:db8::5]:99", nil},
		"advertised":      {PeerNotifications{Bind: ":8479", Advertise: "192.0.2.1:99"}, "10.10.0.5", "192.0.2.1:99", nil},
		"outside of pods": {PeerNotifications{Bind: ":8479"}, "", "", ErrNoPeerNotificationAddress},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := tc.options.Address(func(string) string { return tc.podIP })
			if !errors.Is(err, tc.wantErr) || err == nil && got.String() != tc.want {
				t.Errorf("%s, error %v; want %s, error %v", got, err, tc.want, tc.wantErr)
			}
		})
	}
	if got, err := (&PeerNotifications{Bind: ":8479"}).Address(func(string) string { return "here" }); err == nil {
		t.Errorf("an invalid POD_IP gave %s", got)
	}
}
