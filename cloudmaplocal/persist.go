package cloudmaplocal

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// stateVersion of the file's format. A server reads no other.
const stateVersion = 1

// A burst of registrations is written once. 30,000 instances are 20 MB and a second of work on a busy core (measured), so
// the pause between two writes is at least saveInterval and at least savePause times the duration of the last write: saving
// never uses more than a tenth of a core. A crash can lose the changes of one pause; Close loses nothing.
const (
	saveInterval = time.Second
	savePause    = 9
)

// state is the content of the state file.
type state struct {
	Version int
	Regions []regionState
}

type regionState struct {
	Account, Region string
	Namespaces      []*namespace
	Services        []*service
	Operations      []*operation
}

// allRegions in a fixed order.
func (s *Server) allRegions() []*region {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.regions), func(a, b *region) int {
		return cmp.Or(strings.Compare(a.key.account, b.key.account), strings.Compare(a.key.region, b.key.region))
	})
}

// snapshot returns the content of the state file.
func (s *Server) snapshot() ([]byte, error) {
	all := state{Version: stateVersion}
	for _, r := range s.allRegions() {
		_ = r.withLock(func() error { // cannot fail
			all.Regions = append(all.Regions, r.snapshot())
			return nil
		})
	}
	return json.Marshal(all)
}

// snapshot copies mutable state, so that it can be encoded without the lock.
func (r *region) snapshot() regionState {
	out := regionState{Account: r.key.account, Region: r.key.region}
	for _, id := range sortedKeys(r.namespaces) {
		out.Namespaces = append(out.Namespaces, clone(r.namespaces[id]))
	}
	for _, id := range sortedKeys(r.services) {
		svc := clone(r.services[id])
		svc.Instances = make(map[string]*instance, len(svc.Instances))
		for id, inst := range r.services[svc.ID].Instances {
			svc.Instances[id] = clone(inst)
		}
		out.Services = append(out.Services, svc)
	}
	for _, op := range r.operations.all {
		copied := clone(op)
		copied.Namespace, copied.Instance = clone(op.Namespace), clone(op.Instance)
		out.Operations = append(out.Operations, copied)
	}
	return out
}

// clone copies the value that p points to; nil stays nil.
func clone[T any](p *T) *T {
	if p == nil {
		return nil
	}
	copied := *p
	return &copied
}

// load reads the state file. A missing file is the initial state; any other problem is an error, and the file stays as
// it is.
func (s *Server) load(path string) error {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var version struct{ Version int }
	if err := json.Unmarshal(raw, &version); err != nil {
		return fmt.Errorf("it is not a state file of cloudmap-local: %w; move it away or name another file", err)
	}
	if version.Version != stateVersion {
		return fmt.Errorf("its version is %d, and this cloudmap-local reads version %d; move it away or name another file",
			version.Version, stateVersion)
	}
	var all state
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&all); err != nil {
		return fmt.Errorf("decoding it: %w; move it away or name another file", err)
	}
	for _, saved := range all.Regions {
		key := regionKey{saved.Account, saved.Region}
		r := s.newRegion(key)
		if err := r.restore(saved); err != nil {
			return fmt.Errorf("restoring account %s, Region %s: %w; move the file away or name another", saved.Account, saved.Region, err)
		}
		s.regions[key] = r
	}
	return nil
}

// restore fills a new region. Operations in flight continue; the replica has seen everything.
func (r *region) restore(saved regionState) error {
	if slices.Contains(saved.Namespaces, nil) || slices.Contains(saved.Services, nil) || slices.Contains(saved.Operations, nil) {
		return errors.New("it lists something that is null")
	}
	r.now = r.opts.Now()
	for _, ns := range saved.Namespaces {
		r.namespaces[ns.ID] = ns
		r.replica.apply(change{kind: namespaceCreated, namespace: ns})
	}
	for _, svc := range saved.Services {
		if err := r.restoreService(svc); err != nil {
			return err
		}
	}
	for _, op := range saved.Operations {
		if err := r.restoreOperation(op); err != nil {
			return err
		}
	}
	return nil
}

func (r *region) restoreService(svc *service) error {
	ns := r.namespaces[svc.NamespaceID]
	if ns == nil {
		return fmt.Errorf("the service %s is in the namespace %s, which is not there", svc.ID, svc.NamespaceID)
	}
	if svc.Instances == nil {
		svc.Instances = map[string]*instance{}
	}
	svc.reservedInstances = len(svc.Instances)
	ns.reservedInstances += len(svc.Instances)
	ns.services++
	r.services[svc.ID] = svc
	r.replica.apply(change{kind: serviceCreated, service: svc})
	for id, inst := range svc.Instances {
		if inst == nil || inst.ID != id {
			return fmt.Errorf("the instance %s of the service %s names another id or nothing", id, svc.ID)
		}
		r.replica.apply(change{kind: instanceSet, service: svc, instance: inst, revision: svc.Revision})
	}
	return nil
}

func (r *region) restoreOperation(op *operation) error {
	if op.Done {
		r.operations.add(op)
		return nil
	}
	if err := r.checkRestored(op); err != nil {
		return err
	}
	if svc := r.services[op.Targets[targetService]]; svc != nil && op.Targets[targetInstance] != "" {
		svc.inFlight++
		if op.Type == opRegisterInstance && svc.Instances[op.Targets[targetInstance]] == nil {
			svc.reservedInstances++
			r.namespaces[svc.NamespaceID].reservedInstances++
		}
	}
	r.operations.add(op)
	return nil
}

// checkRestored returns an error if finishOperation could not apply the operation.
func (r *region) checkRestored(op *operation) error {
	ns, svc := r.namespaces[op.Targets[targetNamespace]], r.services[op.Targets[targetService]]
	change := op.Change
	if change == nil {
		change = &operationChange{}
	}
	complete := map[string]bool{
		opCreateNamespace:    op.Namespace != nil,
		opUpdateNamespace:    ns != nil && change.Namespace != nil,
		opDeleteNamespace:    ns != nil && ns.services == 0,
		opUpdateService:      svc != nil && change.Service != nil,
		opRegisterInstance:   svc != nil && op.Instance != nil,
		opDeregisterInstance: svc != nil && svc.Instances[op.Targets[targetInstance]] != nil,
	}
	if !complete[op.Type] {
		return fmt.Errorf("the operation %s of type %s lacks what it works on", op.ID, op.Type)
	}
	if other := r.operations.inFlightByTarget[op.targetKey()]; other != nil {
		return fmt.Errorf("the operations %s and %s work on the same", other.ID, op.ID)
	}
	return nil
}

// saver writes the state file in the background.
type saver struct {
	path     string
	snapshot func() ([]byte, error)
	log      *slog.Logger
	saving   sync.Mutex    // held by save: an older snapshot must not replace a newer one
	dirty    chan struct{} // holds one mark at most
	stop     chan struct{}
	stopped  chan error
}

func startSaver(path string, snapshot func() ([]byte, error), log *slog.Logger) *saver {
	s := &saver{
		path: path, snapshot: snapshot, log: log,
		dirty: make(chan struct{}, 1), stop: make(chan struct{}), stopped: make(chan error, 1),
	}
	go s.run()
	return s
}

// markDirty requests a save.
func (s *saver) markDirty() {
	select {
	case s.dirty <- struct{}{}:
	default: // marked already
	}
}

// close saves a last time and stops the saver.
func (s *saver) close() error {
	close(s.stop)
	return <-s.stopped
}

func (s *saver) run() {
	for {
		select {
		case <-s.stop:
			s.stopped <- s.save()
			return
		case <-s.dirty:
		}
		start := time.Now()
		if err := s.save(); err != nil {
			s.log.Error("Failed to save the state file, retrying", "file", s.path, "error", err)
			s.markDirty()
		}
		select {
		case <-s.stop:
			s.stopped <- s.save()
			return
		case <-time.After(max(saveInterval, savePause*time.Since(start))):
		}
	}
}

// save replaces the file atomically: a reader, or a crash, finds the old or the new content.
func (s *saver) save() error {
	s.saving.Lock()
	defer s.saving.Unlock()
	raw, err := s.snapshot()
	if err != nil {
		return fmt.Errorf("encoding the state: %w", err)
	}
	if err := replaceFile(s.path, raw); err != nil {
		return fmt.Errorf("writing the state file %s: %w", s.path, err)
	}
	return nil
}

func replaceFile(path string, content []byte) (err error) {
	tmp, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.tmp")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(tmp.Name())
		}
	}()
	_, err = tmp.Write(content)
	if err := cmp.Or(err, tmp.Sync(), tmp.Close()); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), path)
}
