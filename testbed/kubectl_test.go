package testbed

import "testing"

func TestOnlyExisting(t *testing.T) {
	const (
		exists    = "Error from server (AlreadyExists): error when creating \"STDIN\": configmaps \"coredns\" already exists\n"
		allocated = "The Service \"kube-dns\" is invalid: spec.clusterIPs: Invalid value: [\"172.20.0.10\"]: failed to allocate IP 172.20.0.10: provided IP is already allocated\n"
		refused   = "The connection to the server 172.30.0.11:6443 was refused\n"
	)
	tests := []struct {
		name, message string
		want          bool
	}{
		{"all there", "kubectl create -f -: exit status 1: " + exists + allocated, true},
		{"something else", "kubectl create -f -: exit status 1: " + exists + refused, false},
		{"no reason given", "kubectl create -f -: exit status 1: ", false},
		{"killed", "kubectl create -f -: signal: killed: ", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := isOnlyExisting(tt.message); got != tt.want {
				t.Errorf("isOnlyExisting(%q) = %t, want %t", tt.message, got, tt.want)
			}
		})
	}
}
