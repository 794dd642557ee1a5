package cli

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// TestSearchForAnAnswerEnds: where a NetworkPolicy swallows all connections, check does not try a thousand services for seconds each.
func TestSearchForAnAnswerEnds(t *testing.T) {
	f := newFleet()
	exportWeb(f)
	s := f["cls1"]
	for _, obj := range s.objects {
		if imp, ok := obj.(*mcsv1beta1.ServiceImport); ok {
			for i := range 100 {
				another := imp.DeepCopy()
				another.Name = fmt.Sprintf("web-%03d", i)
				s.add(another)
			}
			break
		}
	}
	for i := range s.probe.Connections {
		s.probe.Connections[i].Problem = "no answer"
	}
	k := f.sail(t)["cls1"]
	probes := 0
	fetch := k.fetch
	k.fetch = func(ctx context.Context, pod *corev1.Pod, path string) ([]byte, error) {
		probes++
		return fetch(ctx, pod, path)
	}
	k.now = func() time.Time { return today.Add(time.Duration(probes) * 3 * time.Second) }
	a := &app{controllerNamespace: defaultNamespace}
	if got := a.tryImport(t.Context(), k); got == nil || got.Key != demoWeb {
		t.Errorf("tried %v, want the last service that was", got)
	}
	if want := 4; probes != want { // at 0, 3, 6 and 9 seconds
		t.Errorf("%d services were tried, want %d", probes, want)
	}
}
