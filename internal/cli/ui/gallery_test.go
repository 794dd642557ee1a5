package ui

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/chromiumtest"
)

// TestBrowser_Gallery writes pictures of the whole page with -pictures, into a temporary directory
// for a look: 2, 30 and 300 clusters, healthy and broken, on a desktop and on a phone, light and
// dark.
func TestBrowser_Gallery(t *testing.T) {
	if !*pictures {
		t.Skip("needs -pictures")
	}
	for _, n := range []int{2, 30, 300} {
		b := chromiumtest.Start(t)
		for name, f := range map[string]*fleet{"healthy": healthy(n), "broken": broken(n)} {
			url := (&changingSource{fleet: f}).start(t)
			for _, width := range []int{1280, 390} {
				for _, scheme := range []string{"light", "dark"} {
					b.Look(width, 860, scheme)
					open(b, url)
					b.Until(`!document.querySelector("#history .summary").textContent.startsWith("Reading")`)
					var height int
					b.Eval(`document.documentElement.scrollHeight`, &height)
					b.Look(width, min(height, 5000), scheme)
					b.Picture(filepath.Join(os.TempDir(), "ui-pictures", fmt.Sprintf("%d-%s-%d-%s.png", n, name, width, scheme)))
				}
			}
		}
	}
}
