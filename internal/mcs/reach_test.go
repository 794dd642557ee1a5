package mcs

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestReach(t *testing.T) {
	v4, v6 := corev1.IPv4Protocol, corev1.IPv6Protocol
	const own = "cls1"
	local := func(e *Export) { e.InternalTrafficPolicy = corev1.ServiceInternalTrafficPolicyLocal }
	with := func(endpoints ...Endpoint) func(*Export) {
		return func(e *Export) { e.Backends[0].Endpoints = endpoints }
	}
	notReady := Endpoint{Address: readyEndpoint("10.0.0.9").Address}
	serving := Endpoint{Address: readyEndpoint("10.0.0.9").Address, Serving: true, Terminating: true}
	otherPort := func(e *Export) { e.Backends[0].Ports[0].Name = "other" }
	for name, tt := range map[string]struct {
		exports   []Export
		supported []corev1.IPFamily
		want      Reach
	}{
		"ready":                            {[]Export{webExport("cls2", 0)}, nil, ReachAny},
		"no endpoint":                      {[]Export{webExport("cls2", 0, with())}, nil, ReachNone},
		"no ready endpoint":                {[]Export{webExport("cls2", 0, with(notReady))}, nil, ReachNone},
		"terminating, still serving":       {[]Export{webExport("cls2", 0, with(serving))}, nil, ReachAny},
		"headless, terminating":            {[]Export{webExport("cls2", 0, headless, with(serving))}, nil, ReachNone},
		"headless, a port of another name": {[]Export{webExport("cls2", 0, headless, otherPort)}, nil, ReachAny},
		"a port of another name":           {[]Export{webExport("cls2", 0, otherPort)}, nil, ReachNone},
		"a family that is not here":        {[]Export{webExport("cls2", 0, withFamilies(v4, v6), with(readyEndpoint("fd00::1")))}, []corev1.IPFamily{v4}, ReachNone},
		"one of two clusters":              {[]Export{webExport("cls2", 0, with()), webExport("cls3", 1)}, nil, ReachAny},
		"local traffic, only imported":     {[]Export{webExport("cls2", 0, local)}, nil, ReachNoNode},
		"local traffic, exported here":     {[]Export{webExport(own, 0, local)}, nil, ReachOwnNode},
		"local traffic, not ready here":    {[]Export{webExport(own, 0, local, with(notReady)), webExport("cls2", 1, local)}, nil, ReachNoNode},
		"local traffic, headless":          {[]Export{webExport("cls2", 0, local, headless)}, nil, ReachAny},
	} {
		t.Run(name, func(t *testing.T) {
			m := Merge(tt.exports)
			if got := m.Reach(tt.exports, own, tt.supported); got != tt.want {
				t.Errorf("reach %d, want %d", got, tt.want)
			}
		})
	}
}
