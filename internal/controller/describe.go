package controller

import "github.com/prometheus/client_golang/prometheus"

// DescribeMetrics registers the metrics of all controllers without their values, for the reference page.
func DescribeMetrics(registerer prometheus.Registerer) error {
	_, err := registerMetrics(registerer, nil, nil, nil)
	return err
}
