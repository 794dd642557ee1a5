package registry

import (
	"fmt"
	"strings"
)

// Leftover is a resource of the registry that stays after its cluster has left.
type Leftover struct {
	// Resource names it, such as "service members of namespace mcs.set1". Command deletes it.
	Resource, Command string
	// Reason is why it stays.
	Reason string
	// IsProtected: the cluster may not delete it. In a sealed clusterset an administrator does.
	IsProtected bool
}

// LeftoversError is the error of Run after the cluster has left, if resources stay that its
// controllers created. Repeating the attempt would not delete them.
type LeftoversError struct{ Left []Leftover }

// Error implements error.
func (e *LeftoversError) Error() string {
	lines := make([]string, len(e.Left))
	for i, l := range e.Left {
		lines[i] = fmt.Sprintf("%s stays: %s; to delete it: %s", l.Resource, l.Reason, l.Command)
	}
	return strings.Join(lines, "\n")
}
