// Package docs names pages of the documentation in messages.
package docs

import "cmp"

// Tag is the tag of the release that the program is of, set by the build. "" is a build of another
// commit, whose pages have no tag.
var Tag string

// URL returns the address of a page below docs, such as iam.md#hosted-zones, in the version of this
// program. test/docs checks that the pages and headings exist.
func URL(page string) string {
	return "https://github.com/cloud-map-mcs/cloud-map-mcs-controller/blob/" + cmp.Or(Tag, "main") + "/docs/" + page
}
