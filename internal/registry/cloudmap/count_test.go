package cloudmap

import "testing"

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
