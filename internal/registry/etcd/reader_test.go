package etcd

import (
	"context"
	"errors"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestReader_CountBehind checks that a few answers of an etcd member that lags change nothing, and
// that more of them in a row make the reader list again.
func TestReader_CountBehind(t *testing.T) {
	for name, tt := range map[string]struct {
		answers []bool // whether each is behind
		want    int    // the answer that makes the reader list again, -1 for none
	}{
		"none":                       {[]bool{false, false, false}, -1},
		"one less than the limit":    {[]bool{true, true, false, true, true, false}, -1},
		"as many as the limit":       {[]bool{true, true, true}, 2},
		"after one that was current": {[]bool{true, true, false, true, true, true}, 5},
	} {
		t.Run(name, func(t *testing.T) {
			r, got := &reader{}, -1
			for i, behind := range tt.answers {
				if err := r.countBehind(behind); err != nil {
					if got = i; !errors.Is(err, errBehind) {
						t.Errorf("error %v, want %v", err, errBehind)
					}
					break
				}
			}
			if got != tt.want {
				t.Errorf("answer %d makes the reader list again, want %d", got, tt.want)
			}
		})
	}
}

// A reader whose watches all end before their first answer says so, also if each takes long: etcd
// may accept a watch and answer nothing else.
func TestReader_ReportsWatchesWithoutAnswers(t *testing.T) {
	s := newTestStore(t, shared(t))
	s.putKey(t, s.layout("set1").root+"other/1", "x")
	cfg, timings := fast(cls2), fastTimings()
	cfg.ReadOnly = true
	client := s.client(t, cls2)
	client.cfg.options = append(client.cfg.options, grpc.WithChainUnaryInterceptor(
		func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			// the check of a watch
			if read, ok := req.(*pb.RangeRequest); ok && read.Revision != 0 && len(read.RangeEnd) == 0 {
				time.Sleep(timings.retry.Max + timings.retry.Max/4)
				return status.Error(codes.DeadlineExceeded, "no answer")
			}
			return invoke(ctx, method, req, reply, conn, opts...)
		}))
	reg := s.registryOf(t, client, cfg, timings)
	start(t, reg)
	within(t, "the reader reports that etcd does not answer", func() bool { return reg.mirror.problem.Err() != nil })
}
