package union

import (
	"errors"
	"testing"

	"github.com/go-logr/logr"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// reporter is a registry with a fixed report.
type reporter struct {
	registry.Registry // nil: nothing else is called
	report            registry.Report
}

func (r reporter) Report() registry.Report { return r.report }

func TestReport(t *testing.T) {
	web, db := mcs.Key{Namespace: "demo", Name: "web"}, mcs.Key{Namespace: "demo", Name: "db"}
	denied, broken := errors.New("denied"), errors.New("broken")
	r := New(Config{Logger: logr.Discard()},
		Source{"first", reporter{report: registry.Report{Keys: []mcs.Key{web}, Writing: denied}}},
		Source{"other", reporter{report: registry.Report{Keys: []mcs.Key{web, db}, Reading: broken, Writing: broken}}},
		Source{"silent", nil},
	)
	got := r.Report()
	if len(got.Keys) != 2 || !errors.Is(got.Writing, denied) || !errors.Is(got.Reading, broken) || got.Reading.Error() != "registry other: broken" {
		t.Errorf("got %+v", got)
	}
}
