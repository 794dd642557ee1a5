package controller

import (
	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/dns"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/paths"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// DescribeMetrics registers the metrics of all controllers without their values, for the reference
// page.
func DescribeMetrics(registerer prometheus.Registerer) error {
	_, err := registerMetrics(registerer, nil, nil, nil, paths.New(paths.Config{Mode: mcs.PathHealthWithdraw}), dns.NewWatcher(nil, nil, logr.Discard()))
	return err
}
