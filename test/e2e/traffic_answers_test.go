package e2e

import (
	"context"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// answerInterval is the time between two requests of answerLog: its figures are exact to about
// that.
const answerInterval = 50 * time.Millisecond

// answerLog asks a clusterset IP for the name of its server, from a node of a cluster, with a new
// connection each time, and records which cluster answers. Its figures are logged, and no test
// depends on them.
type answerLog struct {
	cancel  context.CancelFunc
	running sync.WaitGroup
	answers []answer
}

// answer is the outcome of one request. The cluster is "" if the request failed.
type answer struct {
	began   time.Time
	cluster string
}

// startAnswerLog starts the requests to an IP.
func startAnswerLog(t *testing.T, node nodeNetwork, ip string) *answerLog {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	l := &answerLog{cancel: cancel}
	t.Cleanup(func() { l.stop() })
	client := &http.Client{Timeout: connectTimeout, Transport: &http.Transport{DialContext: node.dial, DisableKeepAlives: true}}
	l.running.Go(func() {
		ticker := time.NewTicker(answerInterval)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			began := time.Now()
			cluster, err := serverOf(ctx, client, "http://"+net.JoinHostPort(ip, "80"))
			if ctx.Err() == nil {
				l.answers = append(l.answers, answer{began, cluster})
			}
			if err != nil && ctx.Err() == nil {
				t.Logf("a request that began at %s failed: %v", began.Format(time.StampMilli), err)
			}
		}
	})
	return l
}

// serverOf returns the cluster of the server that answers a request.
func serverOf(ctx context.Context, client *http.Client, url string) (cluster string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if m := podName.FindSubmatch(body); m != nil {
		cluster = string(m[1])
	}
	return cluster, err
}

// stop ends the requests, and returns all answers by time.
func (l *answerLog) stop() []answer {
	l.cancel()
	l.running.Wait()
	return l.answers
}

// failed returns the number of requests that failed.
func failed(answers []answer) int {
	n := 0
	for _, a := range answers {
		if a.cluster == "" {
			n++
		}
	}
	return n
}

// lastOf returns the time from a moment to the last request that a cluster answered, 0 if there was
// none later.
func lastOf(answers []answer, cluster string, from time.Time) time.Duration {
	for _, a := range slices.Backward(answers) {
		if a.cluster == cluster {
			return max(0, a.began.Sub(from)).Round(10 * time.Millisecond)
		}
	}
	return 0
}

// firstOf returns the time from a moment to the first request after it that a cluster answered.
func firstOf(answers []answer, cluster string, from time.Time) time.Duration {
	for _, a := range answers {
		if a.cluster == cluster && a.began.After(from) {
			return a.began.Sub(from).Round(10 * time.Millisecond)
		}
	}
	return 0
}

// watchUnready watches the EndpointSlices of a Service in its own cluster. The returned function
// waits until one has no ready endpoint, and returns the time of that change.
func watchUnready(t *testing.T, c cluster, ns, name string) (wait func() time.Time) {
	t.Helper()
	return watchSlices(t, c, ns, client.MatchingLabels{discoveryv1.LabelServiceName: name}, func(e watch.EventType, slice *discoveryv1.EndpointSlice) bool {
		return e == watch.Modified && !hasReady(slice)
	})
}

// watchImported watches the EndpointSlices of an import in a cluster. The returned function waits
// until one has a ready endpoint of another cluster, and returns the time of that change.
func watchImported(t *testing.T, c cluster, ns, name, from string) (wait func() time.Time) {
	t.Helper()
	labels := client.MatchingLabels{mcsv1beta1.LabelServiceName: name, mcsv1beta1.LabelSourceCluster: from}
	return watchSlices(t, c, ns, labels, func(e watch.EventType, slice *discoveryv1.EndpointSlice) bool {
		return e != watch.Deleted && hasReady(slice)
	})
}

func hasReady(slice *discoveryv1.EndpointSlice) bool {
	return slices.ContainsFunc(slice.Endpoints, func(e discoveryv1.Endpoint) bool { return *e.Conditions.Ready })
}

// watchSlices watches EndpointSlices. The returned function waits until one is as wanted, and
// returns the time of that change.
func watchSlices(t *testing.T, c cluster, ns string, labels client.MatchingLabels, isWanted func(watch.EventType, *discoveryv1.EndpointSlice) bool) (wait func() time.Time) {
	t.Helper()
	w, err := c.Watch(t.Context(), &discoveryv1.EndpointSliceList{}, client.InNamespace(ns), labels)
	if err != nil {
		t.Fatal(err)
	}
	changed := make(chan time.Time, 1)
	go func() {
		defer close(changed)
		for event := range w.ResultChan() {
			if slice, ok := event.Object.(*discoveryv1.EndpointSlice); ok && isWanted(event.Type, slice) {
				changed <- time.Now()
				return
			}
		}
	}()
	return func() time.Time {
		t.Helper()
		defer w.Stop()
		select {
		case at, ok := <-changed:
			if !ok {
				t.Fatalf("%s: the watch of the EndpointSlices of %s with %v ended", c.name, ns, labels)
			}
			return at
		case <-time.After(started):
			t.Fatalf("%s: the EndpointSlices of %s with %v have not changed", c.name, ns, labels)
			return time.Time{}
		}
	}
}
