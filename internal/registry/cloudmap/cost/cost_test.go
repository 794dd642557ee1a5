package cost

import (
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/docs"
)

func TestDollars(t *testing.T) {
	for amount, want := range map[float64]string{0: "$0.00", 0.5475: "$0.55", 9.994: "$9.99", 9.996: "$10", 10: "$10", 999.6: "$1,000", 1_234_567: "$1,234,567"} {
		if got := Dollars(amount); got != want {
			t.Errorf("%v is %s, want %s", amount, got, want)
		}
	}
}

// The amounts are computed by hand: 60.5 × 43,800 = 2,649,900 requests are $2.65, with 66 records
// of $0.10 $9.25; 40 × 43,800 = 1,752,000 are $1.75; 12 × 43,800 = 525,600
// are $0.53; 14 × 43,800 = 613,200 are $0.61; 60 × 43,800 = 2,628,000 are $2.63; 500 instances are
// $50.
func TestForecast(t *testing.T) {
	tests := map[string]struct {
		options Options
		want    string
	}{
		"the default": {
			Options{Poll: time.Second, View: true},
			"AWS bills each cluster per month at most about $9.25 for requests and records, and $50 for each 50 exported services with 10 endpoints, " +
				"which --instance-view=false saves (prices of 2025-08-01: " + docs.URL("cost.md") + ")",
		},
		"without the view": {
			Options{Poll: time.Second},
			"AWS bills each cluster per month at most about $9.25 for requests and records (prices of 2025-08-01: " + docs.URL("cost.md") + ")",
		},
		"etcd": {Options{View: true}, ""},
		"mapped services with etcd": {Options{View: true, Mapped: true}, "AWS bills each cluster per month at most $1.75 for mapped services " +
			"($0.53 more for each of more than 3 where ListServices has no numbers of instances) (prices of 2025-08-01: " + docs.URL("cost.md") + ")"},
		"everything": {
			Options{Poll: 5 * time.Second, View: true, Mapped: true, Legacy: true, Further: true},
			"AWS bills each cluster per month at most about $7.15 for requests and records, at most $1.75 for mapped services " +
				"($0.53 more for each of more than 3 where ListServices has no numbers of instances), " +
				"$0.61 for each service that legacy clusters export, $2.63 for each further registry, and $50 for each 50 exported services with 10 endpoints, " +
				"which --instance-view=false saves (prices of 2025-08-01: " + docs.URL("cost.md") + ")",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := tt.options.Forecast(); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

// 12.5 × 43,800 = 547,500 requests are $0.55, 37 records $3.70, 500 instances $50.
func TestUse(t *testing.T) {
	want := "about $54 a month for this cluster: $50 for the instance view (500 instances), $3.70 for records (37), " +
		"$0.55 for requests as in the last minute (prices of 2025-08-01: " + docs.URL("cost.md") + ")"
	if got := (Use{Records: 37, View: 500, Discovery: 12.5}).String(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
