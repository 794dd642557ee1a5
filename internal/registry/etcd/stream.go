package etcd

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// The client library hides that a watch was interrupted: it opens another stream and continues
// after the last answer, also when etcd was set back meanwhile and has other changes before it. And
// two watches with equal metadata share a stream, so that each gets the answers about the progress
// of the other one.

// streamKey is the key of the stream of a watch in its context.
type streamKey struct{}

// ownStream is the stream of a watch.
type ownStream struct {
	grpc.ClientStream // nil until it is open
	cancel            context.CancelCauseFunc
}

// withOwnStream returns a context for one watch, which has a stream of its own and ends with it.
func (c *Client) withOwnStream(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(metadata.AppendToOutgoingContext(ctx, "cloud-map-mcs-watch", strconv.FormatUint(c.watches.Add(1), 10)))
	return context.WithValue(ctx, streamKey{}, &ownStream{cancel: cancel}), cancel
}

// errInterrupted means that the stream of a watch has ended.
var errInterrupted = errors.New("the watch was interrupted")

// openOnce opens one stream for a watch, and ends the watch when the stream ends. It may be tried
// again as long as there was none.
func openOnce(
	ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	own, isWatch := ctx.Value(streamKey{}).(*ownStream)
	if !isWatch {
		return open(ctx, desc, conn, method, opts...)
	}
	if own.ClientStream != nil {
		// the client library tries again after Unavailable and Internal only
		return nil, status.Error(codes.Aborted, errInterrupted.Error())
	}
	stream, err := open(ctx, desc, conn, method, opts...)
	if err != nil {
		return nil, err
	}
	own.ClientStream = stream
	return own, nil
}

// RecvMsg implements grpc.ClientStream.
func (s *ownStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err != nil {
		s.cancel(fmt.Errorf("%w: %w", errInterrupted, err))
	}
	return err
}
