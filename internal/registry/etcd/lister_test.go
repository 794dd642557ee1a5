package etcd

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

func TestPace(t *testing.T) {
	const silence = -1
	type step struct {
		took, wantPause, wantLimit time.Duration
	}
	for name, steps := range map[string][]step{
		"etcd is not busy": {{5 * time.Millisecond, 0, requestTimeout}, {slowPage - 1, 0, requestTimeout}},
		"etcd is busy": {
			{slowPage, slowPage, requestTimeout}, {slowPage, 2 * slowPage, requestTimeout}, {3 * time.Second, 3 * time.Second, 9 * time.Second},
			{8 * time.Second, 8 * time.Second, 24 * time.Second}, {8 * time.Second, maxPause, 24 * time.Second},
		},
		"it becomes less busy": {
			{4 * time.Second, 4 * time.Second, 12 * time.Second}, {slowPage - 1, 2 * time.Second, requestTimeout}, {slowPage/4 - 1, 500 * time.Millisecond, requestTimeout},
			{time.Millisecond, 125 * time.Millisecond, requestTimeout}, {time.Millisecond, 31250 * time.Microsecond, requestTimeout}, {time.Millisecond, 0, requestTimeout},
		},
		"it does not answer": {
			{silence, requestTimeout, 3 * requestTimeout}, {silence, maxPause, 9 * requestTimeout}, {silence, maxPause, maxTimeLimit},
			{silence, maxPause, maxTimeLimit}, {time.Millisecond, maxPause / 4, requestTimeout},
		},
	} {
		var p pace
		for i, step := range steps {
			if step.took == silence {
				p.observeSilence()
			} else {
				p.observe(step.took)
			}
			if p.pause != step.wantPause || p.timeLimit() != step.wantLimit {
				t.Errorf("%s, page %d: a pause of %v, a limit of %v, want %v and %v", name, i, p.pause, p.timeLimit(), step.wantPause, step.wantLimit)
			}
		}
		for range 100 {
			if got := p.jittered(); got < p.pause/2 || got > 2*p.pause {
				t.Fatalf("%s: a wait of %v, with a pause of %v", name, got, p.pause)
			}
		}
	}
}

// busyServer answers requests as a processor does that works on all of them in turn.
type busyServer struct {
	mu sync.Mutex
	// jobs have the time of the processor that each request in progress still takes.
	jobs map[*time.Duration]chan struct{}
}

// share is the time of the processor that a request gets before the others have their turn.
const share = time.Millisecond

// run works on the requests until ctx ends.
func (s *busyServer) run(ctx context.Context) {
	for ctx.Err() == nil {
		s.mu.Lock()
		turn := make([]*time.Duration, 0, len(s.jobs))
		for job := range s.jobs {
			turn = append(turn, job)
		}
		s.mu.Unlock()
		if len(turn) == 0 {
			time.Sleep(share)
		}
		for _, job := range turn {
			s.mu.Lock()
			done, inProgress := s.jobs[job]
			s.mu.Unlock()
			if !inProgress {
				continue
			}
			time.Sleep(min(share, *job))
			if *job -= share; *job <= 0 {
				s.mu.Lock()
				delete(s.jobs, job)
				s.mu.Unlock()
				close(done)
			}
		}
	}
}

// do makes a request that takes some time of the processor.
func (s *busyServer) do(ctx context.Context, work time.Duration) error {
	done := make(chan struct{})
	s.mu.Lock()
	s.jobs[&work] = done
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.jobs, &work)
		s.mu.Unlock()
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// TestLister_ManyAtOnce: 1,000 controllers list at once, for each of which etcd works for some
// time. All lists end, in little more time than etcd works for them, and after the first minute
// another request does not wait for them.
func TestLister_ManyAtOnce(t *testing.T) {
	const (
		controllers, keys = 1000, 25_000
		firstWork, work   = 12 * time.Millisecond, 2 * time.Millisecond
		settled           = time.Minute
	)
	all := make([]*mvccpb.KeyValue, keys)
	for i := range all {
		all[i] = &mvccpb.KeyValue{Key: []byte(fmt.Sprintf("/mcs/set1/cluster-%06d", i))}
	}
	find := func(key string) int {
		i, _ := slices.BinarySearchFunc(all, key, func(kv *mvccpb.KeyValue, key string) int { return strings.Compare(string(kv.Key), key) })
		return i
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		s := &busyServer{jobs: map[*time.Duration]chan struct{}{}}
		var server, lists sync.WaitGroup
		server.Go(func() { s.run(ctx) })
		var mu sync.Mutex
		requests, unanswered := 0, 0
		get := func(ctx context.Context, from, end string, limit, revision int64) (*clientv3.GetResponse, error) {
			took := work
			if revision == 0 {
				took = firstWork
			}
			err := s.do(ctx, took)
			mu.Lock()
			defer mu.Unlock()
			requests++
			if err != nil {
				unanswered++
				return nil, err
			}
			first, last := find(from), find(end)
			return &clientv3.GetResponse{
				Header: &etcdserverpb.ResponseHeader{Revision: 1}, Kvs: all[first:min(last, first+int(limit))], More: last-first > int(limit), Count: int64(last - first),
			}, nil
		}
		began := time.Now()
		for range controllers {
			lists.Go(func() {
				var l lister
				for {
					n := 0
					if _, err := l.List(ctx, "/mcs/set1/", get, func(page *clientv3.GetResponse) { n += len(page.Kvs) }); err == nil {
						if n != keys {
							t.Errorf("%d keys are listed", n)
						}
						return
					}
					time.Sleep(time.Second)
				}
			})
		}
		var waits []time.Duration
		server.Go(func() {
			for time.Sleep(settled); ctx.Err() == nil; time.Sleep(time.Second) {
				sent := time.Now()
				if s.do(ctx, share) == nil {
					waits = append(waits, time.Since(sent))
				}
			}
		})
		lists.Wait()
		took := time.Since(began)
		cancel()
		server.Wait()
		slices.Sort(waits)
		worked := time.Duration(requests) * work
		median, most := waits[len(waits)/2], waits[len(waits)*99/100]
		t.Logf("%v for %d requests, %d of them not answered, which take %v alone; another request takes %v at the median, %v at p99", took, requests, unanswered, worked, median, most)
		if took > 3*worked {
			t.Errorf("the lists take %v, and etcd works for %v", took, worked)
		}
		if most > requestTimeout {
			t.Errorf("another request takes %v", most)
		}
	})
}
