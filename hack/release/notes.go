package main

import (
	"fmt"
	"regexp"
	"strings"
)

// changes returns the section of a version in the changelog without its heading. A pre-release has
// the section of its version.
func changes(changelog, version string) (string, error) {
	number, _, _ := strings.Cut(strings.TrimPrefix(version, "v"), "-")
	_, section, found := strings.Cut("\n"+changelog, "\n## "+number+" ")
	if !found {
		return "", fmt.Errorf("CHANGELOG.md has no section %s", number)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	_, section, _ = strings.Cut(section, "\n")
	return strings.TrimSpace(section) + "\n", nil
}

// fileLink matches the link to a file of the repository: its path begins with no scheme.
var fileLink = regexp.MustCompile(`\]\(([^):#]+(?:#[^)]*)?)\)`)

// releaseNotes returns the text of the release: the changes, and how to install and verify it.
// Links to files of the repository point to its tag.
func releaseNotes(changelog, version string, images []image) (string, error) {
	text, err := changes(changelog, version)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString(fileLink.ReplaceAllString(text, "]("+sourceURL+"/blob/"+version+"/$1)"))
	b.WriteString("\n## Images\n\n")
	for _, i := range images {
		fmt.Fprintf(&b, "- `%s/%s:%s@%s`\n", repository, i.name, version, i.digest)
	}
	fmt.Fprintf(&b, "\nHelm chart: `oci://%s/charts/%s`, version %s\n", repository, chartName, strings.TrimPrefix(version, "v"))
	fmt.Fprintf(&b, "\nInstall and verify: %s/blob/%s/docs/install.md#from-a-release\n", sourceURL, version)
	return b.String(), nil
}
