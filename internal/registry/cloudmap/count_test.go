package cloudmap

import (
	"testing"
	"time"
)

// TestOutboxWaiting has a page that was refused among those that wait.
func TestOutboxWaiting(t *testing.T) {
	o := newOutbox("cls1")
	o.pages[3] = ownPage{adopted: true, dirty: true}
	o.pages[4] = ownPage{adopted: true, torn: true, retry: retry{failures: 1, retryAt: time.Now().Add(time.Hour)}}
	o.pages[5] = ownPage{adopted: true}
	if got := o.waiting(); got != 2 {
		t.Errorf("%d pages wait, want 2", got)
	}
}

func TestOutboxParts(t *testing.T) {
	o := newOutbox("cls1")
	if all, largest := o.parts(); all != 0 || largest != 0 {
		t.Errorf("an empty catalog is %d instances, the largest page %d", all, largest)
	}
	o.pages[3].parts, o.pages[7].parts, o.pages[9].parts = 2, 5, 1
	if all, largest := o.parts(); all != 8 || largest != 5 {
		t.Errorf("the catalog is %d instances and its largest page %d, want 8 and 5", all, largest)
	}
}
