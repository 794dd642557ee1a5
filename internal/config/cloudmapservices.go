package config

import (
	"fmt"

	"github.com/spf13/pflag"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/docs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// CloudMapServices configures the import of services of AWS Cloud Map that no cluster exports.
type CloudMapServices struct {
	// Path is the file that maps them, "" for none.
	Path string
	// Cluster is the ID of the pseudo-cluster that has them.
	Cluster string
}

func (c *CloudMapServices) bind(common, advanced *pflag.FlagSet) {
	common.StringVar(&c.Path, "cloud-map-services", c.Path,
		"File with services of AWS Cloud Map to import, such as those of ECS and EC2: "+docs.URL("ecs-ec2-lambda.md"))
	advanced.StringVar(&c.Cluster, "cloud-map-services-cluster", c.Cluster,
		"ID of the pseudo-cluster that has the services of --cloud-map-services. No cluster may have it.")
}

func (c *CloudMapServices) validate() error {
	if err := mcs.ValidateClusterID(c.Cluster); err != nil {
		return fmt.Errorf("--cloud-map-services-cluster: %w", err)
	}
	return nil
}
