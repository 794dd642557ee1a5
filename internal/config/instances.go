package config

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"time"

	"github.com/spf13/pflag"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/docs"
)

// Routing policies of DNS records, as users write them.
const (
	RoutingMultivalue = "multivalue"
	RoutingWeighted   = "weighted"
)

// Treatments of endpoints that are not ready.
const (
	UnreadyMark       = "mark"
	UnreadyDeregister = "deregister"
	UnreadyUnhealthy  = "unhealthy"
)

// Treatments of instances of stale clusters.
const (
	StaleKeep      = "keep"
	StaleUnhealthy = "unhealthy"
)

var vpcPattern = regexp.MustCompile(`^vpc-[0-9a-f]{8,17}$`)

// maxRecordTTL is AWS Cloud Map's limit of RecordTTL.
const maxRecordTTL = math.MaxInt32 * time.Second

func (i *Instances) bind(_, advanced *pflag.FlagSet) {
	advanced.StringVar(&i.VPC, "instance-dns-vpc", i.VPC,
		"ID of the VPC of the private DNS namespaces to create for --instance-dns (default: none, create HTTP namespaces).")
	advanced.DurationVar(&i.TTL, "instance-dns-ttl", i.TTL,
		"TTL of DNS records of the instance view, in whole seconds.")
	advanced.StringVar(&i.Routing, "instance-dns-routing", i.Routing,
		"Routing policy of DNS records: multivalue (up to eight instances in an answer) or weighted (one).")
	advanced.StringVar(&i.Unready, "unready-instances", i.Unready,
		"Instances of endpoints that are not ready: mark, deregister or unhealthy: "+docs.URL("instance-view.md#health"))
	advanced.StringVar(&i.Stale, "stale-instances", i.Stale,
		"Instances of stale clusters: keep or unhealthy: "+docs.URL("instance-view.md#stale-clusters"))
}

func (i *Instances) validate() error {
	var problems []error
	if i.VPC != "" && !vpcPattern.MatchString(i.VPC) {
		problems = append(problems, fmt.Errorf("--instance-dns-vpc=%s: must be the ID of a VPC, such as vpc-0a1b2c3d4e5f67890", i.VPC))
	}
	if i.TTL < 0 || i.TTL > maxRecordTTL || i.TTL%time.Second != 0 {
		problems = append(problems, fmt.Errorf("--instance-dns-ttl=%s: must be whole seconds, from 0s to %s", i.TTL, maxRecordTTL))
	}
	problems = append(problems, oneOf("instance-dns-routing", i.Routing, []string{RoutingMultivalue, RoutingWeighted}),
		oneOf("unready-instances", i.Unready, []string{UnreadyMark, UnreadyDeregister, UnreadyUnhealthy}),
		oneOf("stale-instances", i.Stale, []string{StaleKeep, StaleUnhealthy}))
	return errors.Join(problems...)
}
