package install

import (
	"slices"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/cost"
)

// forecast describes what AWS bills a cluster with the controller's flags, "" if it bills nothing.
// mapped reports whether the installation has a file with services of AWS Cloud Map.
func forecast(o config.Options, mapped bool) string {
	options := cost.Options{
		View: o.Registry.InstanceView, Mapped: mapped || o.CloudMapServices.Path != "", Legacy: o.Migration.ImportFromAWSController,
		Further: slices.ContainsFunc(o.ImportFrom, func(s config.Source) bool { return s.Backend == config.RegistryCloudMap }),
	}
	if o.Registry.Name == config.RegistryCloudMap {
		options.Poll = min(o.Registry.PollInterval, o.Registry.PollIntervalWithNotifications)
	}
	return options.Forecast()
}
