package api

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// Cloud Map has two hosts. DiscoverInstances and DiscoverInstancesRevision go to the data plane,
// data-servicediscovery.<region>.amazonaws.com, and all other requests to
// servicediscovery.<region>.amazonaws.com, which refuses these two. Each has a VPC endpoint of its
// own (AWS Cloud Map API reference, "Endpoints"; developer guide, "Interface VPC endpoints").

// awsDomains are the domains of AWS's endpoints in all partitions (partitions.go of the AWS SDK).
var awsDomains = []string{
	"amazonaws.com", "amazonaws.com.cn", "amazonaws.eu", "api.aws", "api.amazonwebservices.com.cn", "api.amazonwebservices.eu",
	"c2s.ic.gov", "sc2s.sgov.gov", "cloud.adc-e.uk", "csp.hci.ic.gov", "api.aws.ic.gov", "api.aws.scloud", "api.cloud-aws.adc-e.uk", "api.aws.hci.ic.gov",
}

// dataPlane returns the endpoint of the data plane, and whether the SDK puts "data-" before its
// host name. control is the endpoint of all other requests, data the configured one; "" is AWS's
// own. Under other names than AWS's, such as that of cloudmap-local, one host answers all requests.
func dataPlane(control, data string) (endpoint string, prefixed bool, err error) {
	controlHost, dataHost := hostOf(control), hostOf(data)
	switch {
	case isAWS(controlHost) && isDataHost(controlHost):
		return "", false, fmt.Errorf("endpoint %s is that of DiscoverInstances only: set it with --aws-data-endpoint, and --aws-endpoint to that of servicediscovery", controlHost)
	case isAWS(dataHost) && !isDataHost(dataHost):
		return "", false, fmt.Errorf("data endpoint %s does not answer DiscoverInstances: set --aws-data-endpoint to that of data-servicediscovery", dataHost)
	case data != "":
		return data, false, nil
	case isVPCEndpoint(controlHost):
		return "", false, fmt.Errorf("the VPC endpoint %s does not answer DiscoverInstances: set --aws-data-endpoint (data-endpoint= in --import-from) to the VPC endpoint of "+
			"data-servicediscovery; with private DNS, neither of the two flags is needed", controlHost)
	}
	return control, control == "" || isAWS(controlHost), nil
}

func hostOf(endpoint string) string {
	u, err := url.Parse(endpoint)
	if err != nil {
		return ""
	}
	return strings.ToLower(u.Hostname())
}

// isAWS reports whether a host is one of AWS's.
func isAWS(host string) bool {
	return slices.ContainsFunc(awsDomains, func(domain string) bool { return strings.HasSuffix(host, "."+domain) })
}

// isVPCEndpoint reports whether a host is the own name of a VPC endpoint:
// vpce-….servicediscovery.<region>.vpce.amazonaws.com.
func isVPCEndpoint(host string) bool { return isAWS(host) && strings.Contains(host, ".vpce.") }

// isDataHost reports whether a host of AWS is that of the data plane.
func isDataHost(host string) bool { return strings.Contains("."+host, ".data-servicediscovery") }

// checkEndpoint returns an error for an endpoint without encryption that is not allowed. The
// endpoint may come from AWS's own environment variables and files; "" is AWS's own.
func (cfg Config) checkEndpoint(endpoint string) error {
	if endpoint == "" || cfg.Insecure {
		return nil
	}
	u, err := url.Parse(endpoint)
	if err != nil {
		return errors.New("the endpoint of AWS is not a URL") // err has all of it, passwords too
	}
	if !strings.EqualFold(u.Scheme, "http") || isOwnHost(u.Hostname()) {
		return nil
	}
	return fmt.Errorf("%s://%s is not encrypted: everyone on the network path can read and change the registry; use https://, or allow it with --aws-insecure", u.Scheme, u.Host)
}

// isOwnHost reports whether requests to host stay on this host.
func isOwnHost(host string) bool {
	address, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && address.Unmap().IsLoopback()
}
