package install

import (
	"strings"
	"testing"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
)

func TestForecast(t *testing.T) {
	const view, mapped, revisions, legacy, further = "$50 for each 50 exported services", "$1.75 for mapped services", "$0.53 more for each", "$0.61 for each service that legacy clusters export", "$2.63 for each further registry"
	tests := map[string]struct {
		args   []string
		mapped bool
		want   []string
	}{
		"the default":             {nil, false, []string{"at most about $9.25 for requests and records", view}},
		"no instance view":        {[]string{"--instance-view=false"}, false, []string{"at most about $9.25"}},
		"a longer poll":           {[]string{"--poll-interval=5s"}, false, []string{"at most about $7.15", view}},
		"a file of the plugin":    {nil, true, []string{"$9.25", mapped, revisions, view}},
		"a file of the flag":      {[]string{"--cloud-map-services=/services.yaml"}, false, []string{"$9.25", mapped, revisions, view}},
		"migration":               {[]string{"--import-from-aws-controller"}, false, []string{"$9.25", legacy, view}},
		"a further registry":      {[]string{"--import-from=cloudmap,region=us-west-2"}, false, []string{"$9.25", further, view}},
		"etcd":                    {[]string{"--registry=etcd", "--etcd-endpoints=https://etcd.example.com:2379"}, false, nil},
		"etcd with services":      {[]string{"--registry=etcd", "--etcd-endpoints=https://etcd.example.com:2379"}, true, []string{mapped, revisions}},
		"etcd with etcd as other": {[]string{"--registry=etcd", "--etcd-endpoints=https://a.example.com:2379", "--import-from=etcd,endpoints=https://b.example.com:2379"}, false, nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			options, err := config.Parse(tt.args)
			if err != nil {
				t.Fatal(err)
			}
			got := forecast(options, tt.mapped)
			for _, part := range tt.want {
				if !strings.Contains(got, part) {
					t.Errorf("%q lacks %q", got, part)
				}
			}
			if amounts := strings.Count(got, "$"); amounts != len(tt.want) {
				t.Errorf("%q has %d amounts, want %d", got, amounts, len(tt.want))
			}
		})
	}
}
