package mcs

import (
	"fmt"
	"slices"
	"strings"
)

// AnnotationInstanceDNS is the annotation of a namespace with the DNS records of the Cloud Map
// services that mirror its exports: one of InstanceDNSValues. Without it the default of the cluster
// counts.
const AnnotationInstanceDNS = Domain + "/instance-dns"

// InstanceDNS selects the DNS records of the Cloud Map service that mirrors an export. "" is
// InstanceDNSNone.
type InstanceDNS string

// The values of InstanceDNS.
const (
	// InstanceDNSNone asks for no records.
	InstanceDNSNone InstanceDNS = "none"
	// InstanceDNSAuto asks for addresses if the Service has one port, and for SRV records if it has
	// several.
	InstanceDNSAuto InstanceDNS = "auto"
	// InstanceDNSAddress asks for A and AAAA records, by the families of the Service.
	InstanceDNSAddress InstanceDNS = "address"
	// InstanceDNSSRV asks for SRV records, whose targets have addresses of all families.
	InstanceDNSSRV InstanceDNS = "srv"
)

// InstanceDNSValues returns the values that users can set.
func InstanceDNSValues() []string {
	return []string{string(InstanceDNSNone), string(InstanceDNSAuto), string(InstanceDNSAddress), string(InstanceDNSSRV)}
}

// IsWanted reports whether it asks for records.
func (d InstanceDNS) IsWanted() bool { return d != "" && d != InstanceDNSNone }

// InstanceDNSOf returns the records that the namespace asks for, or else the default of the
// cluster. An annotation that is not valid asks for the default.
func (src Source) InstanceDNSOf() (InstanceDNS, error) {
	wanted, err := src.InstanceDNS, error(nil)
	if key, text, ok := Annotation(src.NamespaceAnnotations, AnnotationInstanceDNS); ok {
		if slices.Contains(InstanceDNSValues(), text) {
			wanted = InstanceDNS(text)
		} else {
			err = fmt.Errorf("annotation %s of the namespace is %q, must be one of %s", key, abbreviate(text), strings.Join(InstanceDNSValues(), ", "))
		}
	}
	if !wanted.IsWanted() {
		return "", err
	}
	return wanted, err
}
