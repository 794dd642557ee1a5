package config

import (
	"errors"
	"testing"
)

func TestHintAddress(t *testing.T) {
	tests := map[string]struct {
		hints   Hints
		podIP   string
		want    string
		wantErr error
	}{
		"IPv4 pod":        {Hints{Bind: ":8479"}, "10.10.0.5", "10.10.0.5:8479", nil},
		"IPv6 pod":        {Hints{Bind: ":99"}, "2001:db8::5", "[2001:db8::5]:99", nil},
		"advertised":      {Hints{Bind: ":8479", Advertise: "192.0.2.1:99"}, "10.10.0.5", "192.0.2.1:99", nil},
		"outside of pods": {Hints{Bind: ":8479"}, "", "", ErrNoHintAddress},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := tc.hints.Address(func(string) string { return tc.podIP })
			if !errors.Is(err, tc.wantErr) || err == nil && got.String() != tc.want {
				t.Errorf("%s, error %v; want %s, error %v", got, err, tc.want, tc.wantErr)
			}
		})
	}
	if got, err := (&Hints{Bind: ":8479"}).Address(func(string) string { return "here" }); err == nil {
		t.Errorf("a POD_IP that is none gave %s", got)
	}
}
