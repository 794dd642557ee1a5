package cloudmap

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
)

// A controller that starts finds the control namespace by lists, of which AWS allows a whole account one in two seconds. A hundred
// controllers that start at once would be without a heartbeat for minutes, and be taken for dead. So the record of a cluster says where
// the controller has found the place, and after a restart it asks whether that is still so, which costs one read and three requests of
// which AWS allows 50 a second each.

// recordedPlace is where a cluster's controller has found its records: the IDs of the control namespace, of service members and of the
// first service of its catalog, or the ARNs in a namespace of another account. Anybody may have written it: it is to be verified.
type recordedPlace struct{ namespace, members, catalog string }

// String is what the record says, at most 767 characters; "" for the zero value.
func (p recordedPlace) String() string {
	if p == (recordedPlace{}) {
		return ""
	}
	return p.namespace + " " + p.members + " " + p.catalog
}

// resourcePattern is an ID or an ARN: what Cloud Map takes for one has at most 255 characters.
var resourcePattern = regexp.MustCompile(`^[0-9A-Za-z:/_-]{1,255}$`)

// parsePlace is String undone; what it cannot read is nothing.
func parsePlace(text string) recordedPlace {
	parts := strings.Split(text, " ")
	if len(parts) != 3 {
		return recordedPlace{}
	}
	for _, part := range parts {
		if !resourcePattern.MatchString(part) {
			return recordedPlace{}
		}
	}
	return recordedPlace{parts[0], parts[1], parts[2]}
}

// toRecord is what our record says of the place: nothing where another life could not find it by that, because the namespace is discovered
// by another name than its own.
func (p controlPlace) toRecord() recordedPlace {
	if p.namespace.HTTPName != p.namespace.Name {
		return recordedPlace{}
	}
	return recordedPlace{p.namespace.ID, p.members.ID, p.catalog.ID}
}

// recallFor is for how long a place that our record tells of is tried to be verified while requests fail that may succeed later. After
// that it is found by lists. A hundred controllers that start at once need two GetService each, at 50 a second for all: 4 s without what
// is throttled.
const recallFor = 30 * time.Second

// recall is the place that our record tells of, verified. It does without lists, so other clusters' catalogs are not known. ok is false
// when the record tells nothing or something else than what is there. An error is one that may be gone at the next attempt.
func (c *control) recall(ctx context.Context) (place controlPlace, ok bool, err error) {
	client := c.client.WithPriority(api.PriorityHigh)
	instances, _, err := client.DiscoverInstances(ctx, c.namespaceName(), membersService, map[string]string{attrClusterID: c.identity.ClusterID})
	if err != nil {
		return place, false, passing(err)
	}
	own := recordOf(instances, c.identity)
	if own == nil || own.place == (recordedPlace{}) {
		return place, false, nil
	}
	if c.recalling.IsZero() {
		c.recalling = time.Now()
	}
	place, err = c.verify(ctx, client, own.place)
	switch {
	case err == nil:
		return place, true, nil
	case errors.Is(err, errElsewhere) || time.Since(c.recalling) >= recallFor:
		return place, false, nil
	}
	return place, false, passing(err)
}

// listSoon completes a recalled place at once if AWS lets us, or has that done later: nothing of ours waits for it.
func (c *control) listSoon(ctx context.Context, place controlPlace) controlPlace {
	ctx, cancel := context.WithTimeout(ctx, listPatience)
	defer cancel()
	services, err := c.client.ListServices(ctx, place.namespace)
	if err == nil {
		place.completedBy(services, c.identity.ClusterID)
	}
	return place
}

// listPatience is how long a controller that starts waits for a list of services, of which AWS allows an account two a second. Without
// throttling it takes a fraction of that.
const listPatience = 2 * time.Second

// completedBy takes in a list of the services. It is false when the list does not have what the place has.
func (p *controlPlace) completedBy(services map[string]api.Service, clusterID string) bool {
	catalogs := catalogsIn(services)
	if services[membersService] != p.members || catalogs[clusterID] != p.catalog {
		return false
	}
	p.catalogs, p.unlisted = catalogs, false
	return true
}

// complete lists the services of a place that was found without. Where the list does not have what the place has, that is gone since, and
// is looked for again.
func (c *control) complete(ctx context.Context) error {
	for {
		known := c.known.Load()
		if known == nil || !known.unlisted {
			return nil
		}
		services, err := c.client.ListServices(ctx, known.namespace)
		if err != nil && !api.IsNotFound(err) {
			return err
		}
		var now *controlPlace
		if completed := *known; completed.completedBy(services, c.identity.ClusterID) {
			now = &completed
		}
		if c.known.CompareAndSwap(known, now) {
			return nil
		}
	}
}

// passing is err if it may be gone at the next attempt, or nil.
func passing(err error) error {
	if api.IsRetryable(err) {
		return err
	}
	return nil
}

// errElsewhere means that a recorded place is not the clusterset's.
var errElsewhere = errors.New("what the record names is not the clusterset's")

// verify looks whether a recorded place is what its resources' names say, in the account that is meant.
func (c *control) verify(ctx context.Context, client *api.Client, recorded recordedPlace) (place controlPlace, err error) {
	in, err := client.GetNamespace(ctx, recorded.namespace)
	if err != nil {
		return place, err
	}
	// Of two namespaces with one name it is the one in which the record was discovered: that name is unique.
	if in.ID != recorded.namespace || in.Name != c.namespaceName() || in.HTTPName != in.Name || !client.IsOwner(in.Owner) {
		return place, errElsewhere
	}
	place = controlPlace{namespace: in, unlisted: true}
	if place.members, err = c.verifyService(ctx, client, in, recorded.members, membersService); err != nil {
		return place, err
	}
	place.catalog, err = c.verifyService(ctx, client, in, recorded.catalog, catalogName(c.identity.ClusterID))
	return place, err
}

// verifyService looks whether a service has this name and is in this namespace.
func (c *control) verifyService(ctx context.Context, client *api.Client, in api.Namespace, id, name string) (api.Service, error) {
	s, err := client.GetService(ctx, id)
	if err != nil {
		return api.Service{}, err
	}
	if s.ID != id || s.Name != name || !in.HasID(s.NamespaceID) || !client.IsOwner(s.Owner) {
		return api.Service{}, errElsewhere
	}
	return s.Service, nil
}

// listIfUnlisted lists the services if the place was found without, however long that takes.
func (r *Registry) listIfUnlisted(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-r.control.unlisted:
	}
	var said string
	_ = r.retrying(ctx, func() error { // it ends without success only with ctx
		err := r.control.complete(ctx)
		if ctx.Err() == nil && text(err) != said {
			said = text(err)
			logChange(r.log, err, "Cannot list the clusterset's catalogs after the start; no import is removed until that works", "Listed the clusterset's catalogs")
		}
		return err
	})
}
