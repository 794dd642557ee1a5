package config

import (
	"fmt"
	"runtime"
)

// Version is the release, set by the build.
var Version = "dev"

// VersionText returns the output of --version.
func VersionText() string {
	return fmt.Sprintf("cloud-map-mcs-controller %s (%s, %s/%s)", Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
