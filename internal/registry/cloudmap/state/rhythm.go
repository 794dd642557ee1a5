package state

import (
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
)

// rhythm predicts which changes come alone. One cause may change several services, or one service
// several times: a pod of a StatefulSet is an endpoint of two Services, a Service of two IP
// families has two EndpointSlices. Such changes are worth a wait, because one write serves all of
// them; for the others it is only a delay. Changes that came together before will do so again,
// mostly. A change is expected to come alone if the last one of its page and the last lonely ones
// of all pages did.
type rhythm struct {
	// isLone are the pages whose last change was alone, alone is the number of changes in a row
	// that were alone.
	isLone [format.PageCount]bool
	alone  int
	// last is the time of the last change, page its page. isClose is set if it was close to the
	// change before it.
	last    time.Time
	page    int
	isClose bool
	// expectsAlone is the prediction for the last change.
	expectsAlone bool
}

// lonely is the number of changes in a row that must have been alone. Where two or five changes
// come in a second at random, this prediction costs 1 to 2 % more writes of the record; after a
// single change it would be 4 to 9 %.
const lonely = 8

// observe records a change of a page. isUpdate is set if it is one of an export that the page has:
// a new one is often changed again at once. Changes that are less than quiet apart are close.
func (r *rhythm) observe(now time.Time, page int, isUpdate bool, quiet time.Duration) {
	isClose := !r.last.IsZero() && now.Sub(r.last) < quiet
	switch {
	case isClose:
		r.isLone[r.page], r.isLone[page], r.alone = false, false, 0
	case !r.last.IsZero() && !r.isClose:
		r.isLone[r.page] = true
		r.alone++
	}
	r.last, r.page, r.isClose = now, page, isClose
	r.expectsAlone = isUpdate && r.isLone[page] && r.alone >= lonely
}
