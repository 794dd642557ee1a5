package controller

import (
	"errors"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// looker is a trigger with a queue, and what came out of it.
type looker struct {
	trigger
	queue workqueue.TypedRateLimitingInterface[reconcile.Request]
}

func newLooker(t *testing.T) *looker {
	t.Helper()
	l := &looker{queue: workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())}
	t.Cleanup(l.queue.ShutDown)
	if err := l.source().Start(t.Context(), l.queue); err != nil {
		t.Fatal(err)
	}
	return l
}

// looksAt are the names of the services that are looked at now.
func (l *looker) looksAt() []string {
	synctest.Wait()
	var names []string
	for l.queue.Len() > 0 {
		req, _ := l.queue.Get()
		l.queue.Done(req)
		names = append(names, req.Name)
	}
	return names
}

func (l *looker) turn(name string) turn { return turn{&l.trigger, mcs.Key{Name: name}} }

func TestTurnsAreOneAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		exports, imports := newLooker(t), newLooker(t)
		q := &turns{imports: &imports.trigger, strain: &strain{}}
		a, b, c := imports.turn("a"), exports.turn("b"), imports.turn("c")
		for range 2 {
			if !q.take(a, forStatus) {
				t.Fatal("nobody waits, and it was not given the turn at once")
			}
		}
		for range 2 {
			if q.take(b, forStatus) || q.take(c, forStatus) {
				t.Fatal("two have the turn")
			}
		}
		q.done(b) // has none
		if d := cmp.Diff([]string(nil), append(exports.looksAt(), imports.looksAt()...)); d != "" {
			t.Fatalf("while another has the turn (-want +got):\n%s", d)
		}
		q.done(a)
		if d := cmp.Diff([][]string{{"b"}, nil}, [][]string{exports.looksAt(), imports.looksAt()}); d != "" {
			t.Fatalf("after the first turn (-want +got):\n%s", d)
		}
		if !q.take(b, forStatus) || q.take(c, forStatus) {
			t.Fatal("it is the second one's turn")
		}
		q.done(b)
		if d := cmp.Diff([]string{"c"}, imports.looksAt()); d != "" {
			t.Fatalf("after the second turn (-want +got):\n%s", d)
		}
		q.done(c) // it found nothing to do any more
		if synctest.Wait(); !q.take(b, forStatus) {
			t.Fatal("nobody waits any more, and it was not given the turn at once")
		}
	})
}

func TestStatusesComeBeforeImports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		imports := newLooker(t)
		q := &turns{imports: &imports.trigger, strain: &strain{}}
		q.take(imports.turn("now"), forImport)
		for _, name := range []string{"a", "b"} {
			q.take(imports.turn(name), forImport)
			q.take(imports.turn("status of "+name), forStatus)
		}
		var got []string
		for has := "now"; has != ""; {
			q.done(imports.turn(has))
			has = strings.Join(imports.looksAt(), ",")
			got = append(got, has)
		}
		if d := cmp.Diff([]string{"status of a", "status of b", "a", "b", ""}, got); d != "" {
			t.Errorf("turns (-want +got):\n%s", d)
		}
	})
}

func TestTurnsComeAfterOtherImports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		exports, imports := newLooker(t), newLooker(t)
		q := &turns{imports: &imports.trigger, strain: &strain{}}
		imports.notify(mcs.Key{Name: "other"})
		if q.take(exports.turn("a"), forStatus) {
			t.Fatal("it was given the turn while an import waits to be made")
		}
		time.Sleep(longestWait / 2)
		if d := cmp.Diff([]string(nil), exports.looksAt()); d != "" {
			t.Fatalf("while an import waits to be made (-want +got):\n%s", d)
		}
		imports.looksAt()
		time.Sleep(peek)
		if d := cmp.Diff([]string{"a"}, exports.looksAt()); d != "" {
			t.Fatalf("no import waits any more (-want +got):\n%s", d)
		}
		q.done(exports.turn("a"))
		imports.notify(mcs.Key{Name: "other"})
		began := time.Now()
		q.take(exports.turn("b"), forStatus)
		for len(exports.looksAt()) == 0 {
			time.Sleep(peek)
		}
		if waited := time.Since(began); waited < longestWait || waited > longestWait+2*peek {
			t.Errorf("it waited for %v, want %v", waited, longestWait)
		}
	})
}

func TestTurnsRestWhenWritingIsSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		imports := newLooker(t)
		q := &turns{imports: &imports.trigger, strain: &strain{best: 3 * time.Millisecond, recent: 18 * time.Millisecond}}
		for _, name := range []string{"a", "b", "c"} {
			q.take(imports.turn(name), forStatus)
		}
		q.done(imports.turn("a"))
		time.Sleep(299 * time.Millisecond)
		if d := cmp.Diff([]string(nil), imports.looksAt()); d != "" {
			t.Fatalf("it should rest (-want +got):\n%s", d)
		}
		time.Sleep(time.Millisecond)
		if d := cmp.Diff([]string{"b"}, imports.looksAt()); d != "" {
			t.Fatalf("after the rest (-want +got):\n%s", d)
		}
		time.Sleep(longestWait)
		q.done(imports.turn("b"))
		if d := cmp.Diff([]string{"c"}, imports.looksAt()); d != "" {
			t.Fatalf("it has waited for too long (-want +got):\n%s", d)
		}
	})
}

func TestRestUnder(t *testing.T) {
	for strain, want := range map[float64]time.Duration{
		1: 0, 3: 0, 3.5: 50 * time.Millisecond, 6: 300 * time.Millisecond, 13: time.Second, 1e9: time.Second,
	} {
		if got := restUnder(strain); got != want {
			t.Errorf("under strain %v: %v, want %v", strain, got, want)
		}
	}
}

// Reads, dry runs, what fails and what is refused say nothing about how fast the API server writes.
func TestStrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s strain
		if got := s.factor(); got != 1 {
			t.Errorf("before anything is written the factor is %v", got)
		}
		write, dryRun := &url.URL{}, &url.URL{RawQuery: "dryRun=All"}
		do := func(method string, u *url.URL, took time.Duration, status int) {
			_, _ = s.measure(roundTripper(func(*http.Request) (*http.Response, error) {
				time.Sleep(took)
				if status == 0 {
					return nil, errors.New("no answer")
				}
				return &http.Response{StatusCode: status}, nil
			})).RoundTrip(&http.Request{Method: method, URL: u})
		}
		do(http.MethodPut, write, 4*time.Millisecond, http.StatusOK)
		for range 50 {
			do(http.MethodPost, write, 12*time.Millisecond, http.StatusCreated)
			do(http.MethodGet, write, time.Hour, http.StatusOK)
			do(http.MethodPost, write, time.Millisecond, http.StatusConflict)
			do(http.MethodPost, write, time.Millisecond, 0)
			do(http.MethodPost, dryRun, time.Millisecond, http.StatusCreated)
		}
		if got := s.factor(); got < 2.99 || got > 3 {
			t.Errorf("the factor is %v, want 3", got)
		}
		do(http.MethodPatch, write, 2*time.Millisecond, http.StatusOK)
		if s.best != 2*time.Millisecond {
			t.Errorf("the best is %v, want 2ms", s.best)
		}
	})
}
