package engine_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
)

func TestSignalSetTwiceIsReceivedOnce(t *testing.T) {
	s := engine.NewSignal()
	s.Set()
	s.Set()
	<-s
	select {
	case <-s:
		t.Error("a second signal is pending")
	default:
	}
}

func TestBackoffPause(t *testing.T) {
	b := engine.Backoff{Initial: time.Second, Max: 10 * time.Second, Jitter: 0.5}
	for failures, want := range map[int]time.Duration{
		0: time.Second, 1: time.Second, 2: 2 * time.Second, 4: 8 * time.Second, 5: 10 * time.Second, 1000: 10 * time.Second,
	} {
		shortest, longest := time.Hour, time.Duration(0)
		for range 200 {
			pause := b.Pause(failures)
			shortest, longest = min(shortest, pause), max(longest, pause)
		}
		if shortest < want/2 || longest > want {
			t.Errorf("%d failures: pauses from %v to %v, want from %v to %v", failures, shortest, longest, want/2, want)
		}
		if longest-shortest < want/4 {
			t.Errorf("%d failures: pauses only from %v to %v, want them spread", failures, shortest, longest)
		}
	}
	if pause := (engine.Backoff{Initial: time.Second, Max: time.Minute}).Pause(3); pause != 4*time.Second {
		t.Errorf("without jitter: %v, want 4s", pause)
	}
}

func TestSleepEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		engine.Sleep(ctx, time.Hour)
		if slept := time.Since(began); slept != time.Second {
			t.Errorf("slept for %v, want 1s", slept)
		}
		engine.Sleep(t.Context(), time.Hour)
		if slept := time.Since(began); slept != time.Hour+time.Second {
			t.Errorf("slept for %v in all, want 1h0m1s", slept)
		}
	})
}

func TestRetryUntilDone(t *testing.T) {
	backoff := engine.Backoff{Initial: time.Second, Max: 8 * time.Second}
	failed := errors.New("failed")
	type attempt struct {
		done bool
		err  error
	}
	tests := []struct {
		name     string
		attempts []attempt // the last one is repeated
		wantErr  bool
		wantTook time.Duration
	}{
		{name: "done at once", attempts: []attempt{{done: true}}},
		{name: "failures lengthen the pause", attempts: []attempt{{err: failed}, {err: failed}, {done: true}}, wantTook: 6 * time.Second},
		{name: "not done does not lengthen the pause", attempts: []attempt{{}, {}, {done: true}}, wantTook: 2 * time.Second},
		{name: "done with an error is repeated", attempts: []attempt{{done: true, err: failed}, {done: true}}, wantTook: 2 * time.Second},
		{name: "fails until the context ends", attempts: []attempt{{err: failed}}, wantErr: true, wantTook: time.Minute},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				began, next := time.Now(), 0
				err := engine.RetryUntilDone(ctx, backoff, func() (bool, error) {
					a := tt.attempts[min(next, len(tt.attempts)-1)]
					next++
					return a.done, a.err
				})
				if tt.wantErr != (err != nil) || tt.wantErr && (!errors.Is(err, failed) || !errors.Is(err, context.DeadlineExceeded)) {
					t.Errorf("error %v, want both errors: %t", err, tt.wantErr)
				}
				if took := time.Since(began); took != tt.wantTook {
					t.Errorf("took %v, want %v", took, tt.wantTook)
				}
			})
		})
	}
}

func TestPublisher(t *testing.T) {
	key := mcs.Key{Namespace: "demo", Name: "web"}
	refused := errors.New("refused")
	var set []string
	record := func(err error) func(mcs.Key, *mcs.Export) error {
		return func(k mcs.Key, exp *mcs.Export) error {
			set = append(set, fmt.Sprintf("%s %t", k, exp != nil))
			return err
		}
	}
	writable, readOnly := engine.NewPublisher("cls1", false, record(refused)), engine.NewPublisher("cls1", true, record(nil))
	if err := writable.Publish(t.Context(), mcs.Export{Key: key, Cluster: "cls1"}); !errors.Is(err, refused) {
		t.Errorf("Publish: %v, want the error of set", err)
	}
	if err := writable.Withdraw(t.Context(), key); !errors.Is(err, refused) {
		t.Errorf("Withdraw: %v, want the error of set", err)
	}
	if got := strings.Join(set, ", "); got != "demo/web true, demo/web false" {
		t.Errorf("set %s, want an export and a withdrawal", got)
	}
	var invalid *registry.InvalidExportError
	if err := writable.Publish(t.Context(), mcs.Export{Key: key, Cluster: "cls2"}); !errors.As(err, &invalid) || invalid.Key != key {
		t.Errorf("Publish for another cluster: %v, want InvalidExportError", err)
	}
	if err := readOnly.Publish(t.Context(), mcs.Export{Key: key, Cluster: "cls1"}); !errors.Is(err, registry.ErrReadOnly) {
		t.Errorf("Publish to a read-only registry: %v, want ErrReadOnly", err)
	}
	if err := readOnly.Withdraw(t.Context(), key); !errors.Is(err, registry.ErrReadOnly) {
		t.Errorf("Withdraw from a read-only registry: %v, want ErrReadOnly", err)
	}
	if len(set) != 2 {
		t.Errorf("set was called %d times, want 2", len(set))
	}
}

func TestNotifierAddsResolvedLookups(t *testing.T) {
	a, b := mcs.Key{Name: "a"}, mcs.Key{Name: "b"}
	n := engine.NewNotifier(func(changed engine.Keys) { changed.Add(b) })
	got := engine.Keys{}
	n.Start(got.Add)
	changed := engine.Keys{}
	changed.Add(a)
	n.Notify(changed)
	if _, ok := got[a]; !ok || len(got) != 2 {
		t.Errorf("notified of %v, want a and b", got)
	}
}

func TestProblemLogsTransitions(t *testing.T) {
	var logged bytes.Buffer
	log := funcr.New(func(_, args string) { fmt.Fprintln(&logged, args) }, funcr.Options{})
	throttled := errors.New("throttled")
	p := engine.NewProblem(log, "Failed to read", "Reading works again", func(err error) bool { return errors.Is(err, throttled) })
	steps := []struct {
		err         error
		wantChanged bool
		wantLog     string
	}{
		{nil, false, ""},
		{errors.New("denied"), true, `"msg"="Failed to read" "error"="denied"`},
		{errors.New("denied"), false, ""},
		{throttled, true, `"level"=0 "msg"="Failed to read" "error"="throttled"`},
		{nil, true, `"level"=0 "msg"="Reading works again"`},
		{nil, false, ""},
	}
	for i, step := range steps {
		logged.Reset()
		if changed := p.Set(step.err); changed != step.wantChanged {
			t.Errorf("step %d: changed %t, want %t", i, changed, step.wantChanged)
		}
		if !errors.Is(p.Err(), step.err) {
			t.Errorf("step %d: error %v, want %v", i, p.Err(), step.err)
		}
		if got := strings.TrimSpace(logged.String()); got != step.wantLog {
			t.Errorf("step %d: logged %q, want %q", i, got, step.wantLog)
		}
	}
	logged.Reset()
	engine.NewProblem(log, "Failed to read", "Reading works again", nil).Set(throttled)
	if got, want := strings.TrimSpace(logged.String()), `"msg"="Failed to read" "error"="throttled"`; got != want {
		t.Errorf("without expected errors: logged %q, want %q", got, want)
	}
}

func TestRunLeavesAfterItsLoops(t *testing.T) {
	tests := []struct {
		name      string
		cause     error
		readOnly  bool
		wantLeave bool
	}{
		{"stopped", nil, false, false},
		{"leaves", registry.ErrLeave, false, true},
		{"leaves a registry that is only read", registry.ErrLeave, true, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var running atomic.Int32
				running.Store(2)
				left := false
				loop := func(d time.Duration) func(context.Context) {
					return func(ctx context.Context) {
						<-ctx.Done()
						time.Sleep(d)
						running.Add(-1)
					}
				}
				leave := func(ctx context.Context) error {
					left = true
					if n := running.Load(); n != 0 {
						t.Errorf("leaves while %d loops run", n)
					}
					<-ctx.Done()
					return context.Cause(ctx)
				}
				if tt.readOnly {
					leave = nil
				}
				ctx, cancel := context.WithCancelCause(t.Context())
				time.AfterFunc(time.Second, func() { cancel(tt.cause) })
				began := time.Now()
				err := engine.Run(ctx, []func(context.Context){loop(time.Second), loop(2 * time.Second)}, time.Minute, leave)
				want := 3 * time.Second
				if tt.wantLeave {
					want += time.Minute
				}
				if took := time.Since(began); left != tt.wantLeave || took != want {
					t.Errorf("left %t after %v, want %t after %v", left, took, tt.wantLeave, want)
				}
				if tt.wantLeave != errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("error %v, want that of leave: %t", err, tt.wantLeave)
				}
			})
		})
	}
}

func TestCheckDurations(t *testing.T) {
	if err := engine.CheckDurations(engine.Duration{Field: "PollInterval", Value: time.Second}); err != nil {
		t.Errorf("all set: %v", err)
	}
	err := engine.CheckDurations(engine.Duration{Field: "PollInterval"}, engine.Duration{Field: "StaleAfter", Value: -1}, engine.Duration{Field: "HeartbeatInterval", Value: 1})
	if err == nil || !strings.Contains(err.Error(), "PollInterval") || !strings.Contains(err.Error(), "StaleAfter") || strings.Contains(err.Error(), "HeartbeatInterval") {
		t.Errorf("error %v, want one that names PollInterval and StaleAfter", err)
	}
}

func TestRun_LeavesUntilTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		leaving, takeBack := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, takeBack)
		ctx, end := context.WithCancelCause(registry.WithLeaveContext(t.Context(), leaving))
		end(registry.ErrLeave)
		began := time.Now()
		err := engine.Run(ctx, nil, time.Minute, func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		})
		if took := time.Since(began); took != time.Second || !errors.Is(err, context.Canceled) {
			t.Errorf("Run returned %v after %v, want %v after 1s", err, took, context.Canceled)
		}
	})
}
