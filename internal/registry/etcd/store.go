package etcd

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/budget"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
)

// store makes the requests of one cluster to etcd. It decides nothing.
type store struct {
	client *Client
	layout layout
	id     string
	// limits bound the values that a list keeps.
	limits budget.Limits
	lister lister
}

// maxAnswer is the largest answer that the client accepts: pageKeys of the largest keys and values.
const maxAnswer = 64 << 20

// kept counts the keys of each cluster in a list, and the bytes of the values that it keeps.
type kept struct {
	keys, byCluster map[string]int
	total           int
}

// isFull reports whether a cluster has more keys than are listed: one more than are known, which
// shows that there are more.
func (k *kept) isFull(id string, limits budget.Limits) bool {
	k.keys[id]++
	limit := keysPerExport * limits.Member[budget.Exports]
	return limit > 0 && k.keys[id] > limit+1
}

// keep reports whether the value of a key is kept. Values of exports within the budget are, because
// they take fewer bytes than the decoded exports.
func (k *kept) keep(id string, bytes int, limits budget.Limits) bool {
	member, total := 2*limits.Member[budget.Bytes], 2*limits.Total[budget.Bytes]
	if member > 0 && (k.byCluster[id]+bytes > member || k.total+bytes > total) {
		return false
	}
	k.byCluster[id] += bytes
	k.total += bytes
	return true
}

// list reads everything of the clusterset at one revision. It is not safe for concurrent use.
func (s *store) list(ctx context.Context) (list []pair, revision int64, err error) {
	revision, err = s.lister.List(ctx, s.layout.root, s.readPage, s.collect(&list))
	if err != nil {
		return nil, 0, err
	}
	return list, revision, nil
}

// readExports reads all exports of a cluster as of a revision.
func (s *store) readExports(ctx context.Context, id string, revision int64) (list []pair, err error) {
	list, _, err = s.readRange(ctx, s.layout.cluster(id)+exportsSuffix, revision)
	return list, err
}

// readRange reads all keys with a prefix as of a revision, 0 for the present one, which it returns.
// It makes none of the pauses of a list: the watch, which waits for it, ends before a long pause
// does.
func (s *store) readRange(ctx context.Context, prefix string, revision int64) (list []pair, _ int64, err error) {
	err = walkPages(prefix, s.collect(&list), func(from, end string, limit int64) (*clientv3.GetResponse, error) {
		ctx, cancel := context.WithTimeout(ctx, requestTimeout)
		defer cancel()
		page, err := s.readPage(ctx, from, end, limit, revision)
		if err == nil && revision == 0 {
			revision = page.Header.Revision
		}
		return page, err
	})
	if err != nil {
		return nil, 0, err
	}
	return list, revision, nil
}

// maxRead is how many keys a request reads by name: as many operations as etcd accepts by default.
const maxRead = 128

// head reads all keys of this cluster, and the member records and the keys alive of others, as of
// one revision.
func (s *store) head(ctx context.Context, others []string) (h head, err error) {
	h.others = others
	began, requests := time.Now(), time.Duration(1)
	if h.pairs, h.revision, err = s.readRange(ctx, s.layout.cluster(s.id), 0); err != nil {
		return head{}, err
	}
	for some := range slices.Chunk(s.layout.headKeys(others), maxRead) {
		pairs, err := s.read(ctx, some, h.revision)
		if err != nil {
			return head{}, err
		}
		h.pairs = append(h.pairs, pairs...)
		requests++
	}
	s.lister.pace.observe(time.Since(began) / requests) // the list begins as busy as etcd is
	return h, nil
}

// collect returns a function that appends what is kept of a page to a list.
func (s *store) collect(list *[]pair) func(page *clientv3.GetResponse) {
	kept := &kept{keys: map[string]int{}, byCluster: map[string]int{}}
	return func(page *clientv3.GetResponse) {
		for _, kv := range page.Kvs {
			if p, ok := s.keep(fromKV(kv, false), kept); ok {
				*list = append(*list, p)
			}
		}
	}
}

// readPage implements getPage.
func (s *store) readPage(ctx context.Context, from, end string, limit, revision int64) (page *clientv3.GetResponse, err error) {
	err = s.client.request(ctx, "list", func(ctx context.Context, c *clientv3.Client) (err error) {
		page, err = c.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(limit), clientv3.WithRev(revision))
		return err
	})
	return page, err
}

// keep returns what a list keeps of a pair; ok is false if it is one of too many.
func (s *store) keep(p pair, kept *kept) (_ pair, ok bool) {
	id := s.layout.clusterOf(p.key)
	if id == s.id || p.key == s.layout.member(id) {
		return p, true
	}
	if kept.isFull(id, s.limits) {
		return p, false
	}
	if !kept.keep(id, len(p.value), s.limits) {
		p.value, p.dropped = nil, true
	}
	return p, true
}

func fromKV(kv *mvccpb.KeyValue, deleted bool) pair {
	return pair{key: string(kv.Key), value: kv.Value, revision: kv.ModRevision, created: kv.CreateRevision, lease: kv.Lease, deleted: deleted}
}

// read reads keys as of a revision, in one request. Those that do not exist are not in the result.
func (s *store) read(ctx context.Context, keys []string, revision int64) ([]pair, error) {
	ops := make([]clientv3.Op, len(keys))
	for i, key := range keys {
		ops[i] = clientv3.OpGet(key, clientv3.WithRev(revision))
	}
	var answer *clientv3.TxnResponse
	err := s.client.call(ctx, "read", func(ctx context.Context, c *clientv3.Client) (err error) {
		answer, err = c.Txn(ctx).Then(ops...).Commit()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("reading %d keys: %w", len(keys), err)
	}
	var pairs []pair
	for _, r := range answer.Responses {
		for _, kv := range r.GetResponseRange().Kvs {
			pairs = append(pairs, fromKV(kv, false))
		}
	}
	return pairs, nil
}

// watch configures store.watch.
type watch struct {
	// revision is the one after which changes are watched. interval is the time between two
	// requests for an answer, silence how long there may be none.
	revision          int64
	interval, silence time.Duration
	// check is called once, before anything else, when etcd has begun to watch.
	check func(context.Context) error
	// apply is called with the changes, in order, and with the revision of each answer. read is
	// called between two answers when signal is set.
	apply  func(changes []pair, revision int64) error
	signal engine.Signal
	read   func(context.Context) error
}

// watch calls w.apply with every change after w.revision, in order, and with the revision of each
// answer of etcd, until something fails, also the connection: an etcd that is set back meanwhile
// ends it. An answer without changes has a revision up to which apply was called with all changes,
// or one before w.revision if etcd was set back.
func (s *store) watch(ctx context.Context, w watch) error {
	ctx, cancel := s.client.withOwnStream(clientv3.WithRequireLeader(ctx))
	defer cancel(nil)
	dead := time.AfterFunc(w.silence, func() { cancel(context.DeadlineExceeded) })
	defer dead.Stop()
	c, err := s.client.connection(ctx)
	if err != nil {
		return withAdvice(err)
	}
	go requestProgress(ctx, c, w.interval)
	answers := c.Watch(ctx, s.layout.root, clientv3.WithPrefix(), clientv3.WithRev(w.revision+1), clientv3.WithCreatedNotify(),
		clientv3.WithProgressNotify(), clientv3.WithFragment())
	var signal engine.Signal // none until the check
	for {
		select {
		case <-signal:
			err = w.read(ctx)
		case answer, ok := <-answers:
			if !ok {
				return withAdvice(context.Cause(ctx))
			}
			if err = answer.Err(); err != nil {
				s.client.handleAuthFailure(c, err)
				return withAdvice(err)
			}
			if answer.Created {
				err = w.check(ctx)
				signal = w.signal
			}
			if err == nil {
				dead.Reset(w.silence)
				err = w.apply(changesIn(answer, w.revision))
			}
		}
		if err != nil {
			return s.endOf(ctx, c, answers, err)
		}
	}
}

// endOf returns the reason why a watch has ended, if a request beside it has failed because of
// that, and err otherwise. The client library has the last answer, with the reason of etcd, before
// it ends the stream.
func (s *store) endOf(ctx context.Context, c *clientv3.Client, answers clientv3.WatchChan, err error) error {
	if ctx.Err() == nil || !errors.Is(err, context.Canceled) {
		return err
	}
	for answer := range answers {
		if reason := answer.Err(); reason != nil {
			s.client.handleAuthFailure(c, reason)
			return withAdvice(reason)
		}
	}
	return withAdvice(context.Cause(ctx))
}

// requestProgress requests an answer of the watch in each interval until ctx ends.
func requestProgress(ctx context.Context, c *clientv3.Client, interval time.Duration) {
	for ticker := time.NewTicker(interval); ; {
		select {
		case <-ticker.C:
			_ = c.RequestProgress(ctx) // the watch reports errors
		case <-ctx.Done():
			ticker.Stop()
			return
		}
	}
}

// changesIn returns the changes in an answer of a watch after revision, and the revision up to
// which they are all there.
func changesIn(answer clientv3.WatchResponse, revision int64) (changes []pair, current int64) {
	changes = make([]pair, len(answer.Events))
	for i, event := range answer.Events {
		changes[i] = fromKV(event.Kv, event.Type == mvccpb.Event_DELETE)
	}
	current = answer.Header.GetRevision()
	if answer.Created {
		current = min(current, revision) // the changes since revision follow
	}
	return changes, current
}

// hasChange reports whether a change that was read from etcd is the latest one of its key as of a
// revision. The error is ErrCompacted if that is not known.
func (s *store) hasChange(ctx context.Context, change seenChange, revision int64) (bool, error) {
	var answer *clientv3.GetResponse
	err := s.client.call(ctx, "read", func(ctx context.Context, c *clientv3.Client) (err error) {
		answer, err = c.Get(ctx, change.key, clientv3.WithRev(revision))
		return err
	})
	switch {
	case errors.Is(err, rpctypes.ErrFutureRev):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("reading %s: %w", change.key, err)
	}
	return len(answer.Kvs) == 1 && answer.Kvs[0].ModRevision == change.revision && sha256.Sum256(answer.Kvs[0].Value) == change.digest, nil
}

// grant requests a lease.
func (s *store) grant(ctx context.Context, ttl time.Duration) (int64, error) {
	var lease int64
	err := s.client.call(ctx, "grant", func(ctx context.Context, c *clientv3.Client) error {
		granted, err := c.Grant(ctx, int64(ttl/time.Second))
		if err == nil {
			lease = int64(granted.ID)
		}
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("requesting a lease: %w", err)
	}
	return lease, nil
}

// revoke revokes a lease.
func (s *store) revoke(ctx context.Context, lease int64) error {
	return s.client.call(ctx, "revoke", func(ctx context.Context, c *clientv3.Client) error {
		_, err := c.Revoke(ctx, clientv3.LeaseID(lease))
		return err
	})
}

// keepAlive renews a lease until ctx ends, the lease does not exist any more, or etcd was
// unreachable for as long as it lasts.
func (s *store) keepAlive(ctx context.Context, lease int64) error {
	c, err := s.client.connection(ctx)
	if err != nil {
		return withAdvice(err)
	}
	answers, err := c.KeepAlive(ctx, clientv3.LeaseID(lease))
	if err != nil {
		return withAdvice(err)
	}
	for range answers {
	}
	return errors.New("the lease ran out")
}

// claim writes the keys alive and member, if alive still has the revision seen.
func (s *store) claim(ctx context.Context, seen, lease int64, alive string, member []byte) (int64, error) {
	return s.txn(ctx, "claim", seen,
		clientv3.OpPut(s.layout.alive(s.id), alive, clientv3.WithLease(clientv3.LeaseID(lease))),
		clientv3.OpPut(s.layout.member(s.id), string(member)))
}

// heartbeat writes the key member if alive still has the revision of the fence.
func (s *store) heartbeat(ctx context.Context, fence int64, member []byte) (int64, error) {
	return s.txn(ctx, "heartbeat", fence, clientv3.OpPut(s.layout.member(s.id), string(member)))
}

// write carries out operations and writes the key member, all or none, if alive still has the
// revision of the fence. It returns the revision.
func (s *store) write(ctx context.Context, fence int64, batch []operation, member []byte) (int64, error) {
	ops := make([]clientv3.Op, len(batch), len(batch)+1)
	for i, op := range batch {
		if key := s.layout.export(s.id, op.key); op.export == nil {
			ops[i] = clientv3.OpDelete(key)
		} else {
			ops[i] = clientv3.OpPut(key, string(op.value))
		}
	}
	return s.txn(ctx, "write", fence, append(ops, clientv3.OpPut(s.layout.member(s.id), string(member)))...)
}

// sayFarewell removes everything of the cluster but the key member, which it writes with a lease,
// if alive still has the revision seen.
func (s *store) sayFarewell(ctx context.Context, seen, lease int64, member []byte) error {
	first, key := s.layout.cluster(s.id), s.layout.member(s.id)
	_, err := s.txn(ctx, "remove", seen,
		clientv3.OpDelete(first, clientv3.WithRange(key)),
		clientv3.OpDelete(key+"\x00", clientv3.WithRange(clientv3.GetPrefixRangeEnd(first))),
		clientv3.OpPut(key, string(member), clientv3.WithLease(clientv3.LeaseID(lease))))
	return err
}

// txn carries out operations if alive was last changed at revision; 0 means that alive does not
// exist.
func (s *store) txn(ctx context.Context, name string, revision int64, ops ...clientv3.Op) (int64, error) {
	var answer *clientv3.TxnResponse
	err := s.client.call(ctx, name, func(ctx context.Context, c *clientv3.Client) (err error) {
		answer, err = c.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(s.layout.alive(s.id)), "=", revision)).Then(ops...).Commit()
		if err == nil && !answer.Succeeded {
			err = errFenceLost
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	return answer.Header.Revision, nil
}

// leaseTTL returns how long a lease lasts after a renewal, 0 if it has expired.
func (s *store) leaseTTL(ctx context.Context, lease int64) (time.Duration, error) {
	var ttl time.Duration
	err := s.client.call(ctx, "lease", func(ctx context.Context, c *clientv3.Client) error {
		answer, err := c.TimeToLive(ctx, clientv3.LeaseID(lease))
		if err == nil && answer.TTL > 0 {
			ttl = time.Duration(answer.GrantedTTL) * time.Second
		}
		return err
	})
	return ttl, err
}

// readOwn reads the cluster's keys alive and member as of one revision. One that does not exist is
// deleted.
func (s *store) readOwn(ctx context.Context) (alive, member pair, err error) {
	alive, member = pair{key: s.layout.alive(s.id), deleted: true}, pair{key: s.layout.member(s.id), deleted: true}
	var answer *clientv3.TxnResponse
	err = s.client.call(ctx, "read", func(ctx context.Context, c *clientv3.Client) (err error) {
		answer, err = c.Txn(ctx).Then(clientv3.OpGet(alive.key), clientv3.OpGet(member.key)).Commit()
		return err
	})
	if err != nil {
		return alive, member, err
	}
	for i, p := range []*pair{&alive, &member} {
		for _, kv := range answer.Responses[i].GetResponseRange().Kvs {
			*p = fromKV(kv, false)
		}
	}
	return alive, member, nil
}
