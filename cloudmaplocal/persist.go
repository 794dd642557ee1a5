package cloudmaplocal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
)

// stateVersion of the file's format. A server reads no other.
const stateVersion = 1

// state is the content of the state file.
type state struct {
	Version int
	Regions []regionState
}

type regionState struct {
	Account, Region string
	Namespaces      []*namespace
	Services        []*service
	UsedNames       []string `json:",omitempty"`
	Operations      []*operation
}

// snapshot copies mutable state, so that it can be encoded without the lock.
func (r *region) snapshot() regionState {
	out := regionState{Account: r.key.account, Region: r.key.region, UsedNames: sortedKeys(r.store.usedNames)}
	for _, id := range sortedKeys(r.store.namespaces) {
		out.Namespaces = append(out.Namespaces, clone(r.store.namespaces[id]))
	}
	for _, id := range sortedKeys(r.store.services) {
		svc := clone(r.store.services[id])
		svc.Instances = make(map[string]*instance, len(svc.Instances))
		for id, inst := range r.store.services[svc.ID].Instances {
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

// readState reads the state file. A missing file is the initial state; any other problem is an
// error, and the file stays as it is.
func readState(path string) (all state, err error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return all, nil
	}
	if err != nil {
		return all, err
	}
	var version struct{ Version int }
	if err := json.Unmarshal(raw, &version); err != nil {
		return all, fmt.Errorf("it is not a state file of cloudmap-local: %w; move it away or name another file", err)
	}
	if version.Version != stateVersion {
		return all, fmt.Errorf("its version is %d, and this cloudmap-local reads version %d; move it away or name another file",
			version.Version, stateVersion)
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&all); err != nil {
		return all, fmt.Errorf("decoding it: %w; move it away or name another file", err)
	}
	return all, nil
}

// restore fills a new region. Operations in flight continue; the replica has seen everything.
func (r *region) restore(saved regionState) error {
	if slices.Contains(saved.Namespaces, nil) || slices.Contains(saved.Services, nil) || slices.Contains(saved.Operations, nil) {
		return errors.New("it lists something that is null")
	}
	for _, name := range saved.UsedNames {
		r.store.usedNames[name] = true
	}
	for _, ns := range saved.Namespaces {
		r.store.namespaces[ns.ID] = ns
		r.replica.applyChange(change{kind: namespaceCreated, namespace: ns})
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
	if err := r.store.restoreService(svc); err != nil {
		return err
	}
	r.replica.applyChange(change{kind: serviceCreated, service: svc})
	for _, inst := range svc.Instances {
		r.replica.applyChange(change{kind: instanceSet, service: svc, instance: inst, revision: svc.Revision})
	}
	return nil
}

// restoreService adds a service with its instances.
func (s *store) restoreService(svc *service) error {
	ns := s.namespaceOf(svc)
	if ns == nil {
		return fmt.Errorf("the service %s is in the namespace %s, which is not there", svc.ID, svc.NamespaceID)
	}
	for id, inst := range svc.Instances {
		if inst == nil || inst.ID != id {
			return fmt.Errorf("the instance %s of the service %s names another id or nothing", id, svc.ID)
		}
	}
	if svc.Instances == nil {
		svc.Instances = map[string]*instance{}
	}
	svc.reservedInstances = len(svc.Instances)
	ns.reservedInstances += len(svc.Instances)
	ns.services++
	s.services[svc.ID] = svc
	return nil
}

func (r *region) restoreOperation(op *operation) error {
	if op.Done {
		r.operations.addOperation(op)
		return nil
	}
	if err := r.store.checkRestored(op); err != nil {
		return err
	}
	if other := r.operations.inFlightByTarget[op.targetKey()]; other != nil {
		return fmt.Errorf("the operations %s and %s work on the same", other.ID, op.ID)
	}
	r.store.restoreReservation(op)
	r.operations.addOperation(op)
	return nil
}

// restoreReservation reserves the quota of an operation in flight.
func (s *store) restoreReservation(op *operation) {
	svc := s.services[op.Targets[targetService]]
	if svc == nil || op.Targets[targetInstance] == "" {
		return
	}
	svc.inFlight++
	if op.Type == opRegisterInstance && svc.Instances[op.Targets[targetInstance]] == nil {
		s.reserveInstance(svc)
	}
}

// checkRestored returns an error if finishOperation could not apply the operation.
func (s *store) checkRestored(op *operation) error {
	ns, svc := s.namespaces[op.Targets[targetNamespace]], s.services[op.Targets[targetService]]
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
	if !complete[op.Type] && op.Fails == nil {
		return fmt.Errorf("the operation %s of type %s lacks what it works on", op.ID, op.Type)
	}
	return nil
}
