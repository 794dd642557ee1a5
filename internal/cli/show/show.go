// Package show has the commands that print the clusterset: status, get, describe, registry and
// graph.
package show

import (
	"github.com/spf13/cobra"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/session"
)

// Commands returns the commands of this package.
func Commands(s *session.Session) []*cobra.Command {
	return []*cobra.Command{statusCommand(s), getCommand(s), describeCommand(s), registryCommand(s), graphCommand(s)}
}
