package docs

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/chromiumtest"
)

// site returns the folder of the site that make site has built of the pages as they are now.
func site(t *testing.T) string {
	t.Helper()
	if os.Getenv("REQUIRE_SITE") == "" {
		t.Skip("needs the site, which make site-test builds before it runs this test")
	}
	return filepath.Join(root, "dist", "site")
}

var id = regexp.MustCompile(` id="([^"]+)"`)

// TestSite checks that the site has each page of docs/ with the anchors that its headings have on
// GitHub, so that a link to the one is a link to the other.
func TestSite(t *testing.T) {
	folder := site(t)
	for name, p := range pages(t) {
		path, ok := strings.CutPrefix(filepath.ToSlash(name), "docs/")
		if !ok {
			continue
		}
		path = strings.TrimSuffix(path, ".md") + ".html"
		if filepath.Base(path) == "README.html" {
			path = filepath.Join(filepath.Dir(path), "index.html")
		}
		html, err := os.ReadFile(filepath.Join(folder, path))
		if err != nil {
			t.Errorf("%s is not on the site: %v", name, err)
			continue
		}
		ids := map[string]bool{}
		for _, m := range id.FindAllSubmatch(html, -1) {
			ids[string(m[1])] = true
		}
		for anchor := range p.anchors {
			if !ids[anchor] {
				t.Errorf("%s has no anchor %q of %s", path, anchor, name)
			}
		}
	}
}

// TestBrowser_Site opens pages of the site and searches it: no other server is asked, no script is
// refused, and no page is wider than a phone.
func TestBrowser_Site(t *testing.T) {
	server := httptest.NewServer(http.FileServer(http.Dir(site(t))))
	defer server.Close()
	b := chromiumtest.Start(t)
	// the script of the page has run: its outline is not in the HTML
	const ready = `document.querySelector(".VPDocAsideOutline .outline-link")`

	b.Look(1280, 800, "dark")
	b.Open(server.URL + "/reference/flags.html#import-flags")
	b.Until(ready)
	b.Check("the page is dark", `document.documentElement.classList.contains("dark")`)
	b.Eval(`document.querySelector("#local-search button").click()`, nil)
	b.Until(`document.querySelector("#localsearch-input")`)
	b.Eval(`(() => {
		const input = document.querySelector("#localsearch-input")
		input.value = "CloudMapMCSMemberStale"
		input.dispatchEvent(new Event("input"))
	})()`, nil)
	b.Until(`document.querySelector("#localsearch-list a[href^='/runbooks/CloudMapMCSMemberStale.html']")`)

	b.Look(390, 800, "light")
	for _, page := range []string{"/", "/reference/flags.html", "/benchmarks/", "/comparison.html"} {
		b.Open(server.URL + page)
		b.Until(ready)
		b.Check(page+" is as wide as a phone", `document.documentElement.scrollWidth === 390`)
	}

	for _, problem := range b.Reported() {
		t.Errorf("the site reports %s", problem)
	}
	for _, request := range b.Requested() {
		if !strings.HasPrefix(request, server.URL+"/") && !strings.HasPrefix(request, "data:") && request != "about:blank" {
			t.Errorf("the site requests %s", request)
		}
	}
}
