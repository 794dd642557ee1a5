package cloudmap

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/record"
)

// garbageCluster is a member that writes nothing that can be used.
const garbageCluster = "garbage"

// forgerUID is the UID of the member that signs what it writes under the IDs of the others.
const forgerUID = "uid-forger"

// vandalise changes random records of any cluster, as a hostile member or an administrator may.
func (tr *trial) vandalise() {
	s, ok := tr.controlServices()
	if !ok {
		return
	}
	admin, ctx := tr.admin, context.Background()
	victim := tr.clusters[tr.rnd.IntN(machines)].identity.ClusterID
	switch tr.rnd.IntN(4) {
	case 0: // a part of a page or the copy of a record is deleted
		tr.deleteOne(victim, s[format.CatalogName(victim)])
	case 1: // a record is deleted
		_ = admin.DeregisterInstance(ctx, s[format.MembersService].ID, victim)
		tr.noteDeletedRecord(s[format.MembersService], api.Instance{ID: victim})
	case 2: // garbage
		attrs := (&format.Member{ClusterID: garbageCluster, ClusterSetID: "set1", UID: "uid-garbage", Joined: time.Now(), Generation: 1}).Instance(signerOf("uid-garbage")).Attributes
		attrs[[]string{format.AttrPages, format.AttrFormat, format.AttrGeneration, format.AttrUID}[tr.rnd.IntN(4)]] = []string{"", "99.0", "00.AAAAAAAAAAA", "%"}[tr.rnd.IntN(4)]
		_, _ = admin.RegisterInstance(ctx, s[format.MembersService].ID, api.Instance{ID: garbageCluster, Attributes: attrs})
	case 3: // an instance that is none of ours in a catalog
		if s, ok := s[format.CatalogName(victim)]; ok {
			_, _ = admin.RegisterInstance(ctx, s.ID, api.Instance{ID: "page-07-9", Attributes: map[string]string{"PAGE": "07", "GENERATION": "99999999999999", "PARTS": "1"}})
		}
	}
}

// controlServices are the services that the clusters wrote to last, by name; ok is false before
// service members has records.
func (tr *trial) controlServices() (services map[string]api.Service, ok bool) {
	tr.writtenMu.Lock()
	defer tr.writtenMu.Unlock()
	services = map[string]api.Service{}
	for name, id := range tr.services {
		services[name] = api.Service{ID: id, Name: name}
	}
	return services, services[format.MembersService].ID != ""
}

// deleteOne deletes one of the instances of a cluster's catalog.
func (tr *trial) deleteOne(id string, s api.Service) {
	if s.ID == "" {
		return
	}
	instances, err := tr.admin.ListInstances(context.Background(), s)
	if err != nil || len(instances) == 0 {
		return
	}
	if deleted := instances[tr.rnd.IntN(len(instances))].ID; deleted != format.CopyID || !tr.needsCopy(id) {
		_ = tr.admin.DeregisterInstance(context.Background(), s.ID, deleted)
	}
}

// The operations of another user of Cloud Map. Any of their requests may fail; what was done until
// then is done.

// deleteRecord deletes a cluster's record, or those of all clusters.
func (tr *trial) deleteRecord(a *actor) {
	s, ok := tr.controlServices()
	if !ok {
		return
	}
	all := tr.hostile.IntN(4) == 0
	tr.deleteInstances(s[format.MembersService], func(i api.Instance) bool { return all || i.ID == a.identity.ClusterID })
}

// deletePage deletes a cluster's copy of its record, one of its pages, or all of them.
func (tr *trial) deletePage(a *actor) {
	s, ok := tr.controlServices()
	if !ok {
		return
	}
	prefix := []string{format.CopyID, "page-" + format.PageName(format.PageOf(tr.keys[tr.hostile.IntN(allKeys)])), "page-", ""}[tr.hostile.IntN(4)]
	if (prefix == "" || prefix == format.CopyID) && tr.needsCopy(a.identity.ClusterID) {
		return
	}
	tr.deleteInstances(s[format.CatalogName(a.identity.ClusterID)], func(i api.Instance) bool { return strings.HasPrefix(i.ID, prefix) })
}

// needsCopy reports whether the copy of a cluster's record may be all that shows the cluster that a
// clone has written later records, up to the five minutes of heartbeats that are not saved. Without
// it the others take its records for replays until its clock has caught up, which
// docs/reliability-tests.md has as a limit.
func (tr *trial) needsCopy(id string) bool {
	return slices.ContainsFunc(tr.clusters, func(a *actor) bool { return a.identity.ClusterID == id && a.isContested() })
}

// deleteServices deletes a cluster's catalog with its record, service members, or the namespace
// with everything in it.
func (tr *trial) deleteServices(a *actor) {
	s, ok := tr.controlServices()
	if !ok {
		return
	}
	id := a.identity.ClusterID
	switch tr.hostile.IntN(3) {
	case 0:
		tr.deleteInstances(s[format.MembersService], func(i api.Instance) bool { return i.ID == id })
		tr.deleteService(s[format.CatalogName(id)])
	case 1:
		tr.deleteService(s[format.MembersService])
	default:
		tr.wipe()
	}
}

// wipe deletes the namespace with everything in it.
func (tr *trial) wipe() {
	tr.history.Logf("the namespace is wiped")
	s, ok := tr.controlServices()
	if !ok {
		return
	}
	for _, service := range s {
		tr.deleteService(service)
	}
	if namespaces, err := tr.admin.ListNamespaces(context.Background()); err == nil {
		_ = tr.admin.DeleteNamespace(context.Background(), namespaces[format.ControlNamespace("set1")])
	}
}

// deleteView deletes a service of the instance view.
func (tr *trial) deleteView(*actor) {
	if !tr.shows {
		return
	}
	services, err := tr.shownIn(tr.hostile.IntN(namespaces))
	if err != nil || len(services) == 0 {
		return
	}
	name := slices.Sorted(maps.Keys(services))[tr.hostile.IntN(len(services))]
	tr.deleteService(services[name])
	delete(tr.foreign, name)
}

func (tr *trial) deleteInstances(s api.Service, chosen func(api.Instance) bool) {
	if s.ID == "" {
		return
	}
	listed, err := tr.admin.ListInstances(context.Background(), s)
	if err != nil {
		return
	}
	for _, instance := range listed {
		if chosen(instance) {
			_ = tr.admin.DeregisterInstance(context.Background(), s.ID, instance.ID)
			tr.noteDeletedRecord(s, instance)
		}
	}
}

// deleteService deletes a service with its instances. It stays if another client writes to it
// meanwhile.
func (tr *trial) deleteService(s api.Service) {
	tr.deleteInstances(s, func(api.Instance) bool { return true })
	if s.ID != "" {
		_ = tr.admin.DeleteService(context.Background(), s)
	}
}

// noteChangedRecord notes that another user has changed the record of a cluster. If the cluster has
// left, a reader that was down since has no way to know that.
func (tr *trial) noteChangedRecord(s api.Service, instance api.Instance) {
	if s.Name != format.MembersService {
		return
	}
	tr.changedAt[instance.ID] = time.Now()
	isRetired := slices.ContainsFunc(tr.clusters, func(a *actor) bool { return a.isRetired && a.identity.ClusterID == instance.ID })
	tr.writtenMu.Lock()
	defer tr.writtenMu.Unlock()
	if isRetired || tr.hasLeft[instance.ID] {
		tr.lostFarewells[instance.ID] = true
	}
}

// noteUnsaidFarewell notes that a cluster has left without a farewell if the record with its ID is
// signed by another member: a cluster that has just joined gives way to it, and one that leaves
// then writes nothing.
func (tr *trial) noteUnsaidFarewell(a *actor) {
	if _, isForeign := tr.foreignRecord(a); isForeign {
		tr.writtenMu.Lock()
		defer tr.writtenMu.Unlock()
		tr.lostFarewells[a.identity.ClusterID] = true
	}
}

// foreignRecord reports whether the record with the ID of a cluster is signed by another member,
// and returns the service that has it.
func (tr *trial) foreignRecord(a *actor) (members api.Service, isForeign bool) {
	s, ok := tr.controlServices()
	if !ok {
		return members, false
	}
	members = s[format.MembersService]
	shown, ok := tr.shownRecord(members, a.identity.ClusterID)
	return members, ok && shown.Key != signerOf(a.identity.UID).Key()
}

// removeForeignRecord removes the record with the ID of a cluster that another member has signed.
func (tr *trial) removeForeignRecord(a *actor) {
	if members, isForeign := tr.foreignRecord(a); isForeign {
		_ = tr.admin.DeregisterInstance(context.Background(), members.ID, a.identity.ClusterID)
	}
}

// noteDeletedRecord notes that another user has deleted the record of a cluster. A duplicate or a
// clone that starts before the cluster has written it again, and whose catalog is gone too, finds
// the ID free.
func (tr *trial) noteDeletedRecord(s api.Service, instance api.Instance) {
	if s.Name != format.MembersService {
		return
	}
	tr.deletedAt[instance.ID] = time.Now()
	for _, a := range tr.clusters {
		if a.identity.ClusterID == instance.ID && a.clone != nil {
			a.aloneAt = time.Now()
		}
	}
	tr.noteChangedRecord(s, instance)
}

// shownRecord is the record of a cluster in service members, as the admin reads it.
func (tr *trial) shownRecord(s api.Service, id string) (r format.Member, ok bool) {
	listed, err := tr.admin.ListInstances(context.Background(), s)
	if err != nil {
		return r, false
	}
	i := slices.IndexFunc(listed, func(i api.Instance) bool { return i.ID == id })
	if i < 0 {
		return r, false
	}
	r, err = format.ParseMember(listed[i], "set1")
	return r, err == nil
}

// forgeRecord writes a record of a cluster that another member has signed, or changes one that the
// cluster has signed.
func (tr *trial) forgeRecord(a *actor) {
	s, ok := tr.controlServices()
	if !ok {
		return
	}
	members := s[format.MembersService]
	r, ok := tr.shownRecord(members, a.identity.ClusterID)
	if !ok {
		return
	}
	forged := tr.forged(r)
	if tr.hostile.IntN(4) == 0 { // its own signature over something else
		forged = r.Instance(signerOf(a.identity.UID))
		forged.Attributes[[]string{
			format.AttrPages, format.AttrFarewell, format.AttrHeartbeat, format.AttrSignature, format.AttrNamespaces, format.AttrImports,
		}[tr.hostile.IntN(6)]] =
			[]string{"", "true", strconv.FormatInt(r.Heartbeat+3_600_000, 10)}[tr.hostile.IntN(3)]
		maps.DeleteFunc(forged.Attributes, func(_, value string) bool { return value == "" })
	}
	_, _ = tr.admin.RegisterInstance(context.Background(), members.ID, forged)
	tr.noteChangedRecord(members, forged)
}

// forged is a record as another member could have signed it in its place.
func (tr *trial) forged(r format.Member) api.Instance {
	ahead := int64(tr.hostile.IntN(3)-1) * 3_600_000
	r.Heartbeat += ahead
	r.Generation += ahead
	switch tr.hostile.IntN(5) {
	case 0:
		r.Pages = format.Digests{}
	case 1:
		r.Pages, r.Farewell = format.Digests{}, true
	case 2:
		r.UID = forgerUID
	case 3:
		r.Joined = r.Joined.Add(-time.Hour)
	}
	return r.Instance(signerOf(forgerUID))
}

// forgeCopy replaces the copy of a cluster's record in its catalog too, as a member may under the
// policies that let each cluster tag its own catalog. A reader that knows the cluster refuses the
// key for as long as the cluster lives. A cluster that has left or is silent has no such
// protection, as docs/iam.md says: clearForgedCopies keeps to this limit.
func (tr *trial) forgeCopy(a *actor) {
	if a.process == nil || a.becomes != nil || time.Since(tr.beat[a.identity.ClusterID]) > settings.HeartbeatInterval || time.Since(a.joinedAt) < 2*time.Minute ||
		!tr.isPinned(a) {
		return
	}
	s, ok := tr.controlServices()
	if !ok {
		return
	}
	r, ok := tr.shownRecord(s[format.MembersService], a.identity.ClusterID)
	if !ok || r.Key != signerOf(a.identity.UID).Key() || r.Farewell {
		return
	}
	forged := tr.forged(r)
	tr.forgedCopies[a] = time.Now()
	_, _ = tr.admin.RegisterInstance(context.Background(), s[format.CatalogName(a.identity.ClusterID)].ID, format.CopyOf(forged))
	if tr.hostile.IntN(2) == 0 {
		_, _ = tr.admin.RegisterInstance(context.Background(), s[format.MembersService].ID, forged)
	}
}

// isPinned reports whether every other cluster has pinned a cluster's key since its last farewell.
func (tr *trial) isPinned(a *actor) bool {
	for _, reader := range tr.clusters {
		if reader == a || reader.isRetired {
			continue
		}
		pins, err := tr.ids.pinsOf(reader.identity.ClusterID).LoadPins(context.Background())
		if pin := pins[a.identity.ClusterID]; err != nil || pin.Left || pin.Forgotten || pin.Key != signerOf(a.identity.UID).Key() {
			return false
		}
	}
	return true
}

// clearForgedCopies removes the forged copies of clusters that are silent.
func (tr *trial) clearForgedCopies() {
	for a := range tr.forgedCopies {
		if time.Since(tr.beat[a.identity.ClusterID]) > settings.StaleAfter/4 {
			tr.clearForgedCopy(a)
		}
	}
}

// clearForgedCopy removes the forged copy of a cluster's record, if there is one, once a list shows
// it.
func (tr *trial) clearForgedCopy(a *actor) {
	forgedAt, isForgery := tr.forgedCopies[a]
	if !isForgery {
		return
	}
	delete(tr.forgedCopies, a)
	time.Sleep(maxLag - time.Since(forgedAt))
	s, _ := tr.controlServices()
	isOfCluster := func(i api.Instance) bool {
		return (i.ID == a.identity.ClusterID || i.ID == format.CopyID) && isForged(i)
	}
	tr.deleteInstances(s[format.CatalogName(a.identity.ClusterID)], isOfCluster)
	tr.deleteInstances(s[format.MembersService], isOfCluster)
}

// isForged reports whether another member has signed a record or a copy of one.
func isForged(i api.Instance) bool {
	return i.Attributes[format.AttrKey] == signerOf(forgerUID).Key().String()
}

// forgePage replaces a page by one that another member has signed, and announces it by a record of
// the same member or not at all.
func (tr *trial) forgePage(a *actor) {
	s, ok := tr.controlServices()
	if !ok || s[format.CatalogName(a.identity.ClusterID)].ID == "" {
		return
	}
	members := s[format.MembersService]
	r, ok := tr.shownRecord(members, a.identity.ClusterID)
	if !ok {
		return
	}
	k := tr.hostile.IntN(allKeys)
	exp := a.export(k, 1)
	exp.Annotations = map[string]string{"example.com/version": "forged"}
	data, err := record.Encode([]mcs.Export{exp})
	if err != nil {
		tr.t.Fatal(err)
	}
	page, generation := format.PageOf(exp.Key), r.Generation+int64(tr.hostile.IntN(3))*3_600_000
	parts, err := format.SplitPage(a.identity, signerOf(forgerUID), page, generation, data)
	if err != nil {
		tr.t.Fatal(err)
	}
	for _, part := range parts {
		_, _ = tr.admin.RegisterInstance(context.Background(), s[format.CatalogName(a.identity.ClusterID)].ID, part)
	}
	if tr.hostile.IntN(2) == 0 {
		r.Pages[page], r.Generation, r.Heartbeat = format.Digest(data), generation, r.Heartbeat+1
		_, _ = tr.admin.RegisterInstance(context.Background(), members.ID, r.Instance(signerOf(forgerUID)))
		tr.noteChangedRecord(members, api.Instance{ID: a.identity.ClusterID})
	}
}

// maxWritten is how many instances of each kind the trial keeps for replays.
const maxWritten = 100

// writtenInstance is an instance that a cluster has written, and signed.
type writtenInstance struct {
	clusterID string
	kind      writtenKind
	instance  api.Instance
}

type writtenKind string

const (
	writtenMember   writtenKind = "record"
	writtenFarewell writtenKind = "farewell"
	writtenCopy     writtenKind = "copy"
	writtenPart     writtenKind = "part of a page"
)

// noteWritten keeps an instance for replays. Of all that were written it keeps some, old ones too.
func (tr *trial) noteWritten(serviceID, instanceID string, attrs map[string]string) {
	w := writtenInstance{clusterID: attrs[format.AttrClusterID], instance: api.Instance{ID: instanceID, Attributes: attrs}}
	switch {
	case instanceID == format.CopyID:
		w.kind = writtenCopy
	case attrs[format.AttrFarewell] != "":
		w.kind = writtenFarewell
	case attrs[format.AttrHeartbeat] != "":
		w.kind = writtenMember
	default:
		w.kind = writtenPart
	}
	tr.writtenMu.Lock()
	defer tr.writtenMu.Unlock()
	name := format.CatalogName(w.clusterID)
	if w.kind == writtenMember || w.kind == writtenFarewell {
		name = format.MembersService
	}
	tr.services[name] = serviceID
	kept := tr.written[w.kind]
	if len(kept) < maxWritten {
		tr.written[w.kind] = append(kept, w)
		return
	}
	tr.next++
	kept[tr.next*7919%maxWritten] = w
}

// replay writes an instance again that a cluster had written earlier, or all parts of the page with
// it.
func (tr *trial) replay(kind writtenKind) func(*actor) {
	return func(*actor) {
		tr.writtenMu.Lock()
		kept := slices.Clone(tr.written[kind])
		tr.writtenMu.Unlock()
		s, ok := tr.controlServices()
		if !ok || len(kept) == 0 {
			return
		}
		chosen := kept[tr.hostile.IntN(len(kept))]
		if kind == writtenCopy && tr.needsCopy(chosen.clusterID) {
			return
		}
		service := s[format.CatalogName(chosen.clusterID)]
		if kind == writtenMember || kind == writtenFarewell {
			service = s[format.MembersService]
		}
		for _, w := range kept {
			samePage := w.clusterID == chosen.clusterID && w.instance.Attributes[format.AttrSignature] == chosen.instance.Attributes[format.AttrSignature]
			if service.ID != "" && samePage {
				_, _ = tr.admin.RegisterInstance(context.Background(), service.ID, w.instance)
				tr.noteChangedRecord(service, w.instance)
			}
		}
	}
}

// backUp keeps all instances of the clusterset as they are, without copies that another member has
// forged: restored for a cluster that is silent later, they would be beyond the limit that
// forgeCopy keeps to.
func (tr *trial) backUp(*actor) {
	s, ok := tr.controlServices()
	if !ok {
		return
	}
	backup := map[string][]api.Instance{}
	for name, service := range s {
		listed, err := tr.admin.ListInstances(context.Background(), service)
		if err != nil {
			return
		}
		backup[name] = slices.DeleteFunc(listed, func(i api.Instance) bool { return i.ID == format.CopyID && isForged(i) })
	}
	tr.backup = backup
}

// restoreBackup puts the clusterset back to the backup: what came after is gone, and everything has
// its earlier value.
func (tr *trial) restoreBackup(*actor) {
	if tr.backup == nil {
		return
	}
	if tr.hostile.IntN(2) == 0 {
		tr.wipe()
		time.Sleep(time.Duration(tr.hostile.IntN(5)) * time.Second)
	}
	s, ok := tr.controlServices()
	if !ok {
		return
	}
	for name, service := range s {
		wanted := map[string]bool{}
		for _, instance := range tr.backup[name] {
			wanted[instance.ID] = true
			_, _ = tr.admin.RegisterInstance(context.Background(), service.ID, instance)
			tr.noteChangedRecord(service, instance)
		}
		tr.deleteInstances(service, func(i api.Instance) bool { return !wanted[i.ID] })
	}
}

// hide makes a cluster lose the share of the namespace, or the permissions for everything.
func (tr *trial) hide(a *actor) {
	tr.hideMu.Lock()
	defer tr.hideMu.Unlock()
	tr.hidden[a.identity.ClusterID] = hiding{
		until: time.Now().Add(time.Duration(5+tr.hostile.IntN(115)) * time.Second), isDenied: tr.hostile.IntN(2) == 0,
	}
}

// hiding says until when a cluster does not see the clusterset's namespace, and whether requests
// are denied or find nothing.
type hiding struct {
	until    time.Time
	isDenied bool
}

// answerHidden answers the request of a cluster that does not see the namespace: code is the error,
// body the answer without one. ok is false if the cluster sees it.
func (tr *trial) answerHidden(req request) (code, body string, ok bool) {
	tr.hideMu.Lock()
	h, ok := tr.hidden[req.cluster]
	tr.hideMu.Unlock()
	switch {
	case !ok || !time.Now().Before(h.until):
		return "", "", false
	case h.isDenied:
		return "AccessDeniedException", "", true
	}
	code, body = answerUnshared(req.operation)
	return code, body, true
}

// answerUnshared answers a request as if no namespace existed: code is the error, body the answer
// without one.
func answerUnshared(operation string) (code, body string) {
	switch {
	case strings.HasPrefix(operation, "Create"):
		return "AccessDeniedException", ""
	case operation == "ListNamespaces":
		return "", `{"Namespaces":[]}`
	case operation == "DiscoverInstances":
		return "NamespaceNotFound", ""
	}
	return "ServiceNotFound", ""
}

// isHidden reports whether a cluster does not see the namespace.
func (tr *trial) isHidden(a *actor) bool {
	tr.hideMu.Lock()
	defer tr.hideMu.Unlock()
	return time.Now().Before(tr.hidden[a.identity.ClusterID].until)
}

// showAll gives every cluster the namespace back.
func (tr *trial) showAll() {
	tr.hideMu.Lock()
	defer tr.hideMu.Unlock()
	clear(tr.hidden)
}
