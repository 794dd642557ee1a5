package config

import (
	"fmt"
	"runtime"
)

// Version is the release; the build sets it.
var Version = "dev"

// VersionText is what --version prints.
func VersionText() string {
	return fmt.Sprintf("cloud-map-mcs-controller %s (%s, %s/%s)", Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
