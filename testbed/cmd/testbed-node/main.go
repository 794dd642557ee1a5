// Testbed-node is the first process of a node. The testbed starts it in new namespaces and sends
// its specification on standard input.
package main

import (
	"fmt"
	"os"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/testbed/node"
)

func main() {
	if err := node.Run(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "testbed-node:", err)
		os.Exit(1)
	}
}
