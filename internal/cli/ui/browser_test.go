package ui

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/chromiumtest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/docs"
)

var pictures = flag.Bool("pictures", false, "write the pictures of docs/kubectl-mcs.md and README.md")

// open opens the page with its token and waits until it shows data.
func open(b *chromiumtest.Browser, url string) {
	b.Open(url + "/#token=" + testToken)
	b.Until(`document.querySelector("#live")?.dataset.level === "ok"`)
}

// quiet fails the test if a script of the page failed, or the page requested something of another
// server.
func quiet(t *testing.T, b *chromiumtest.Browser, url string) {
	t.Helper()
	for _, problem := range b.Reported() {
		t.Errorf("the page reports %s", problem)
	}
	requests := b.Requested()
	if len(requests) < 4 {
		t.Errorf("only %q were requested", requests)
	}
	for _, r := range requests {
		if !strings.HasPrefix(r, url+"/") && r != "about:blank" {
			t.Errorf("the page requests %s", r)
		}
		if strings.Contains(r, testToken) && !strings.HasSuffix(r, "/#token="+testToken) {
			t.Errorf("the token is in the request %s", r)
		}
	}
}

const (
	cells = `[...document.querySelectorAll("#clusters .items a")]`
	rows  = `[...document.querySelectorAll("#services tbody tr")]`
)

// TestBrowser_Three opens the page of three clusters.
func TestBrowser_Three(t *testing.T) {
	b := chromiumtest.Start(t)
	data := &changingSource{fleet: three()}
	url := data.start(t)
	b.Look(1280, 800, "light")
	open(b, url)
	b.Check("the token is not in the address", `location.href === "`+url+`/"`)
	b.Check("title", `document.querySelector("h1").textContent === "production"`)
	if got, want := b.Text(cells+`.map((a) => a.querySelector(".id").textContent)`), "virginia,dublin,frankfurt"; got != want {
		t.Errorf("clusters %s, want the stale and the drained ones first: %s", got, want)
	}
	b.Check("heartbeat, version, exports, path", cells+`[0].textContent.includes("heartbeat 5 min ago · v0.1.0") && `+cells+`[0].textContent.includes("2 exports · 7 endpoints") && `+cells+`[0].textContent.includes("path ok from 2 of 2")`)
	if got, want := b.Text(rows+`.map((tr) => tr.cells[1].textContent + " " + tr.querySelector(".badge").textContent.slice(2))`),
		"payments/fraud no endpoints,shop/search conflict,payments/ledger stale,platform/login stale,payments/api drained,platform/metrics ok,shop/cart ok,shop/web ok"; got != want {
		t.Errorf("services %s, want %s", got, want)
	}
	b.Check("problems", `document.querySelector("#problems ul").textContent.includes("member virginia is stale")`)

	details(b)
	changes(b, data)
	filters(b)
	keyboard(t, b)
	reload(b)
	quiet(t, b, url)
}

// details checks what the page says about services and a cluster.
func details(b *chromiumtest.Browser) {
	for _, detail := range []struct{ route, text string }{
		// its tiers
		{"service/production/shop/cart", "$self; topology.kubernetes.io/region=$self; *"},
		// for these clusters
		{"service/production/shop/cart", "dublin virginia"},
		// its conflict
		{"service/production/shop/search", "dublin has appProtocol http, frankfurt has none"},
		// exported by a stale cluster
		{"service/production/payments/ledger", "virginia"},
		// drained
		{"cluster/production/dublin", "50%"},
		// stale
		{"cluster/production/virginia", "5 min ago"},
	} {
		b.Eval(`location.hash = "#/`+detail.route+`"`, nil)
		name := detail.route[strings.LastIndex(detail.route, "/")+1:]
		b.Until(`document.querySelector("#detail").open && document.querySelector("#detail-title").textContent.includes("` + name + `")`)
		b.Check(detail.route+" says "+detail.text, `document.querySelector("#detail-body").textContent.includes("`+detail.text+`")`)
	}
	b.Eval(`location.hash = "#/service/production/payments/ledger"`, nil)
	b.Until(`document.querySelector("#detail-title").textContent.includes("ledger")`)
	b.Check("the exporter is stale", `[...document.querySelectorAll("#detail-body td")].some((td) => td.textContent === "stale")`)
	b.Press("Escape")
	b.Until(`!document.querySelector("#detail").open`)
}

// changes checks that the page shows and announces changes.
func changes(b *chromiumtest.Browser, data *changingSource) {
	data.change(func(f *fleet) { f.members[0].Problems = []string{"page 1 cannot be read"} })
	b.Until(cells + `[0].querySelector(".state").textContent === "problem"`)
	b.Until(`document.querySelector("#changes").textContent.includes("cluster frankfurt is problem")`)
	data.change(func(f *fleet) { f.addService("shop", "new", 80, 1, 0, "dublin") })
	b.Until(`document.querySelector("#changes").textContent.includes("service shop/new is new")`)
}

func filters(b *chromiumtest.Browser) {
	b.Eval(`(() => { const i = document.querySelector("#services input"); i.value = "shop dublin"; i.dispatchEvent(new Event("input")); })()`, nil)
	b.Check("filter", rows+`.length === 2`)
	b.Eval(`document.querySelector("#services input").value = "nothing"; document.querySelector("#services input").dispatchEvent(new Event("input"))`, nil)
	b.Check("no match", `!document.querySelector("#services .empty").hidden && `+rows+`.length === 0`)
	b.Eval(`document.querySelector("#services input").value = ""; document.querySelector("#services input").dispatchEvent(new Event("input"))`, nil)
	b.Eval(`[...document.querySelectorAll("#services .states button")].find((e) => e.textContent.includes("stale")).click()`, nil)
	b.Check("state", rows+`.length === 2 && document.querySelector("#services .states [aria-pressed=true]").textContent.includes("stale 2")`)
	b.Eval(`document.querySelector("#services .states [aria-pressed=true]").click()`, nil)
	b.Check("all again", rows+`.length === 9`)
}

// reload checks that the tab keeps the token.
func reload(b *chromiumtest.Browser) {
	b.Eval(`window.before = true`, nil)
	b.Call("Page.reload", nil, nil)
	// the tab keeps the token
	b.Until(`!window.before && document.querySelector("#live")?.dataset.level === "ok"`)
}

func keyboard(t *testing.T, b *chromiumtest.Browser) {
	t.Helper()
	focus := func() string {
		t.Helper()
		return b.Text(`document.activeElement.closest("a, button, input")?.textContent || document.activeElement.tagName`)
	}
	b.Eval(`document.activeElement.blur()`, nil)
	b.Press("Tab")
	if got := focus(); got != "Skip to the clusters" {
		t.Errorf("the first stop is %s", got)
	}
	b.Press("/")
	b.Check("/ goes to a filter", `document.activeElement === document.querySelector("#clusters input")`)
	b.Press("ArrowDown", "ArrowRight")
	b.Check("arrow keys move between clusters", `document.activeElement === `+cells+`[1]`)
	b.Check("the focus is visible", `getComputedStyle(document.activeElement).outlineStyle === "solid" && parseFloat(getComputedStyle(document.activeElement).outlineWidth) >= 2`)
	b.Press("End")
	b.Check("End", `document.activeElement === `+cells+`.at(-1)`)
	for _, stop := range []string{"#exporters", "#importers", "#paths"} {
		b.Press("Tab")
		b.Check("clusters and each list of the pictures are one stop", `document.activeElement.matches("`+stop+` a")`)
	}
	b.Press("Tab")
	for strings.HasPrefix(b.Text(`document.activeElement.closest(".states") ? "state" : ""`), "state") {
		b.Press("Tab")
	}
	b.Check("states and filter of services", `document.activeElement === document.querySelector("#services input")`)
	b.Press("Tab")
	for range 6 {
		b.Check("columns to sort by", `document.activeElement.matches("#services .sort")`)
		b.Press("Tab")
	}
	b.Press("ArrowDown", "ArrowDown")
	b.Check("arrow keys move between services", `document.activeElement === `+rows+`[2].querySelector("a")`)
	b.Check("one stop in the table", `document.querySelectorAll("#services tbody a[tabindex='0']").length === 1`)
	b.Press("Enter")
	b.Until(`document.querySelector("#detail").open && document.querySelector("#steps .failure")`)
	b.Check("the detail names the service", `document.querySelector("#detail-title").textContent === `+rows+`[2].cells[1].textContent`)
	b.Check("steps of diagnose", `document.querySelectorAll("#steps .steps li").length === 14 && document.querySelector("#steps .failure").textContent.includes("Remedy: run kubectl mcs dns enable")`)
	b.Check("the focus is in the dialog", `document.querySelector("#detail").contains(document.activeElement)`)
	b.Eval(`document.querySelector("#steps .bar button").click()`, nil)
	b.Until(`document.querySelectorAll("#steps .steps li").length === 15`) // with the DNS answer
	b.Press("Escape")
	b.Until(`!document.querySelector("#detail").open && !location.hash`)
	b.Check("the focus is back", `document.activeElement === `+rows+`[2].querySelector("a")`)
	b.Eval(`location.hash = "#/cluster/production/virginia"`, nil)
	b.Until(`document.querySelector("#detail").open && document.querySelector("#detail-body").textContent.includes("Paths to its pods")`)
	b.Press("Escape")
	b.Until(`!document.querySelector("#detail").open`)
}

// TestBrowser_ThreeHundred opens the page of 300 clusters and 600 services.
func TestBrowser_ThreeHundred(t *testing.T) {
	b := chromiumtest.Start(t)
	data := &changingSource{fleet: many(300)}
	url := data.start(t)
	b.Look(1440, 900, "dark")
	open(b, url)
	b.Check("all cells", cells+`.length === 300`)
	b.Check("trouble first", cells+`.slice(0, 9).every((a) => a.dataset.level === "bad")`)
	b.Check("compact: a screen and a quarter at most", `document.querySelector("#clusters .items").getBoundingClientRect().height < 1.25 * innerHeight`)
	b.Check("no cell is cut off", cells+`.every((a) => { const id = a.querySelector(".id"); return id.scrollWidth <= id.clientWidth; })`)
	b.Check("the page does not scroll sideways", `document.documentElement.scrollWidth <= innerWidth`)
	b.Check("namespaces", `document.querySelectorAll("#services .group").length === 75`)
	b.Eval(`document.querySelector("#services .sort").click()`, nil)
	b.Check("rows in parts", rows+`.length === 200 && document.querySelector("#services .more").textContent === "Show 200 more of 600 services"`)
	b.Eval(`document.querySelector("#services .more").click()`, nil)
	b.Check("more rows", rows+`.length === 400`)
	b.Eval(`(() => { const i = document.querySelector("#clusters input"); i.value = "eu-central v0.2"; i.dispatchEvent(new Event("input")); })()`, nil)
	b.Check("filter by Region and version", cells+`.length > 0 && `+cells+`.every((a) => a.textContent.includes("v0.2.0") && a.textContent.includes("eu-central"))`)
	b.Eval(`(() => { const i = document.querySelector("#clusters input"); i.value = ""; i.dispatchEvent(new Event("input")); })()`, nil)

	// The cell that has the focus moves to the front when its cluster becomes stale, and keeps the
	// focus.
	b.Eval(cells+`.find((a) => a.textContent.includes("eu-west-1-40")).focus()`, nil)
	data.change(func(f *fleet) {
		for i := range f.members {
			if f.members[i].ClusterID == "eu-west-1-40" {
				f.members[i].Stale = true
			}
		}
	})
	b.Until(`document.activeElement.dataset.level === "bad"`)
	b.Check("focus", `document.activeElement.textContent.includes("eu-west-1-40")`)
	quiet(t, b, url)
}

// TestBrowser_Narrow opens the page on a small screen.
func TestBrowser_Narrow(t *testing.T) {
	b := chromiumtest.Start(t)
	url := (&changingSource{fleet: three()}).start(t)
	b.Look(400, 800, "light")
	open(b, url)
	b.Check("the page does not scroll sideways", `document.documentElement.scrollWidth <= innerWidth`)
	b.Eval(`location.hash = "#/service/production/shop/cart"`, nil)
	b.Until(`document.querySelector("#steps .failure")`)
	b.Check("the detail does not scroll sideways", `document.querySelector("#detail").scrollWidth <= innerWidth`)
	quiet(t, b, url)
}

// TestBrowser_Broken opens the page of 30 clusters with problems, and two contexts that are not
// read.
func TestBrowser_Broken(t *testing.T) {
	b := chromiumtest.Start(t)
	f := broken(30)
	url := (&changingSource{fleet: f}).start(t)
	b.Call("Browser.grantPermissions", map[string]any{"origin": url, "permissions": []string{"clipboardReadWrite", "clipboardSanitizedWrite"}}, nil)
	b.Call("Emulation.setFocusEmulationEnabled", map[string]any{"enabled": true}, nil)
	b.Look(1280, 860, "light")
	open(b, url)
	b.Until(`!document.querySelector("#history .summary").textContent.startsWith("Reading")`)
	problemLinks(b)
	contextCards(b)
	pictureOfMap(b)
	matrix(b)
	folds(b)
	sorts(t, b)
	events(b)
	copies(t, b)
	remedyPages(t, b)
	for _, scheme := range []string{"dark", "light"} {
		b.Look(390, 860, scheme)
		b.Until(`document.querySelectorAll("#paths thead th").length < 10`)
		low := []string{}
		if b.Eval(contrast, &low); len(low) > 0 {
			t.Errorf("%s: low contrast of %q", scheme, low)
		}
	}
	phone(t, b)
	quiet(t, b, url)
	unknown(t, b)
}

// problemLinks checks that a problem has its remedy, and leads to its object.
func problemLinks(b *chromiumtest.Browser) {
	b.Check("the first problems", `document.querySelectorAll("#problems li").length === 5 && document.querySelector("#problems .more").textContent === "Show all 8 problems"`)
	b.Eval(`document.querySelector("#problems .more").click()`, nil)
	item := `[...document.querySelectorAll("#problems li")].find((li) => li.textContent.includes("`
	for text, want := range map[string]struct{ remedy, title string }{
		"connections to pods of cluster": {"check routes, security groups and NetworkPolicies", "eu-central-1-04"},
		"is stale":                       {"run kubectl mcs forget ap-south-1-06", "ap-south-1-06"},
		"PortConflict":                   {"find the reason: kubectl mcs diagnose api -n team-00 --context eu-central-1-01", "team-00/api"},
		"no permission":                  {"see kubectl-mcs.md#permissions", "staging"},
		"i/o timeout":                    {"find the reason: kubectl mcs check --context arn:aws:eks:eu-west-1:111122223333:cluster/analytics", "arn:aws:eks:eu-west-1:111122223333:cluster/analytics"},
	} {
		b.Check(text+" has the remedy of the CLI", item+text+`")).querySelector(".remedy").textContent.includes("`+want.remedy+`")`)
		b.Eval(item+text+`")).querySelector("a").click()`, nil)
		b.Until(`document.querySelector("#detail").open && document.querySelector("#detail-title").textContent === "` + want.title + `"`)
		b.Press("Escape")
		b.Until(`!document.querySelector("#detail").open`)
	}
	// The event of the end of one detail is later than the route of the next one.
	b.Eval(item+`PortConflict")).querySelector("a").click()`, nil)
	b.Until(`document.querySelector("#detail").open`)
	b.Eval(`document.querySelector("#detail").close(); location.hash = `+item+`is stale")).querySelector("a").hash; setTimeout(() => { window.isLater = true; }, 200)`, nil)
	b.Until(`window.isLater && document.querySelector("#detail").open && document.querySelector("#detail-title").textContent === "ap-south-1-06"`)
	b.Press("Escape")
	b.Until(`!document.querySelector("#detail").open`)
}

// remedyPages checks which addresses in a remedy are links: those of the documentation, in any
// version.
func remedyPages(t *testing.T, b *chromiumtest.Browser) {
	t.Helper()
	iam := docs.URL("iam.md#hosted-zones")
	for text, want := range map[string]string{
		"compare with " + iam + "; if it continues, wait":                                     "iam.md#hosted-zones " + iam,
		"see (" + strings.Replace(docs.URL("runbooks/A.md"), "main", "v0.1.0-rc.1", 1) + ").": "runbooks/A.md " + strings.Replace(docs.URL("runbooks/A.md"), "main", "v0.1.0-rc.1", 1),
		"see https://example.com/docs/iam.md":                                                 "",
		"see https://github.com/cloud-map-mcs/other/blob/main/docs/iam.md":                    "",
		"see javascript:alert(1)//" + strings.TrimPrefix(iam, "https:"):                       "",
	} {
		encoded, err := json.Marshal(text)
		if err != nil {
			t.Fatal(err)
		}
		var got string
		if b.Eval(`import("/dom.js").then((m) => m.remedy(`+string(encoded)+`).filter((e) => e.href).map((e) => e.textContent + " " + e.href).join("|"))`, &got); got != want {
			t.Errorf("the links of %q are %q, want %q", text, got, want)
		}
	}
}

// contextCards checks that the contexts which are not read are cards, with what is not known.
func contextCards(b *chromiumtest.Browser) {
	b.Check("cards", `["staging no permission", "cluster/analytics unreachable"].every((text) => `+cells+`.some((a) => a.textContent.includes(text.split(" ")[0]) && a.textContent.includes(text.split(" ")[1])))`)
	b.Check("they are no clusters", `document.querySelector("#figures dd").textContent === "30"`)
	b.Eval(cells+`.find((a) => a.textContent.includes("staging")).click()`, nil)
	b.Until(`document.querySelector("#detail").open && document.querySelector("#detail-body").textContent.includes("no permission to list pods")`)
	b.Press("Escape")
	b.Until(`!document.querySelector("#detail").open`)
}

func pictureOfMap(b *chromiumtest.Browser) {
	b.Check("the clusters with problems first, and the number of the others", `[...document.querySelectorAll("#exporters .id")].map((e) => e.textContent).join().startsWith("ap-south-1-06,eu-central-1-04,us-east-1-03,") && document.querySelector("#exporters li:last-child").textContent.startsWith("18 others")`)
	b.Check("a line for each state", `["bad", "warn", "note", "unknown", "ok"].every((level) => document.querySelector("#arrows path[data-level=" + level + "]"))`)
	b.Check("lines differ not by colour alone", `new Set([...document.querySelectorAll("#arrows path")].map((p) => p.dataset.level + getComputedStyle(p).strokeDasharray)).size === 5 && new Set([...document.querySelectorAll("#arrows path")].map((p) => getComputedStyle(p).strokeDasharray)).size === 5`)
	b.Check("its states in words", `/unreachable 3.*stale \d+.*drained \d+.*path unknown \d+.*ok \d+/s.test(document.querySelector("#map .legend").textContent)`)
	b.Check("what is not known", `document.querySelector("#map .notes").textContent.includes("Unknown: which clusters without a context import from")`)
	b.Eval(`document.querySelector("#exporters a").focus()`, nil)
	b.Check("the lines of the others are dim", `document.querySelector("#arrows .dim") && [...document.querySelectorAll("#arrows path:not(.dim)")].every((p) => p.from === JSON.stringify(["production", "ap-south-1-06"]))`)
	b.Eval(`document.activeElement.blur()`, nil)
}

func matrix(b *chromiumtest.Browser) {
	b.Check("a row for each context that is read", `document.querySelectorAll("#paths tbody tr").length === 3`)
	b.Check("the column with problems first", `document.querySelector("#paths thead th:nth-child(2)").textContent === "eu-central-1-04" && document.querySelectorAll("#paths td[data-state=unreachable]").length === 3`)
	b.Check("all columns on a wide page", `document.querySelectorAll("#paths thead th").length === 31`)
	b.Check("what is not known", `document.querySelector("#paths .notes").textContent.includes("Unknown: the paths from")`)
	b.Eval(`(() => { const i = document.querySelector("#clusters input"); i.value = "us-east"; i.dispatchEvent(new Event("input")); })()`, nil)
	b.Check("the filter of the clusters", `document.querySelectorAll("#paths thead th").length === 7`)
	b.Eval(`(() => { const i = document.querySelector("#clusters input"); i.value = ""; i.dispatchEvent(new Event("input")); })()`, nil)
}

func folds(b *chromiumtest.Browser) {
	group := `[...document.querySelectorAll("#services .group")].find((tr) => tr.textContent.includes("team-05"))`
	b.Check("namespaces with problems first", `document.querySelector("#services .group").textContent.includes("1 no endpoints")`)
	b.Check("a namespace without problems is folded", group+`.querySelector("button").getAttribute("aria-expanded") === "false" && !`+rows+`.some((tr) => tr.textContent.includes("team-05/"))`)
	b.Check("services that are ok are folded", `!`+rows+`.some((tr) => tr.matches(".service") && tr.dataset.level === "ok")`)
	b.Eval(group+`.querySelector("button").click()`, nil)
	b.Check("open", group+`.querySelector("button").getAttribute("aria-expanded") === "true" && `+rows+`.some((tr) => tr.textContent.includes("team-05/"))`)
	b.Eval(`document.querySelector("#services .fold-ok button").click()`, nil)
	b.Check("open ok", rows+`.some((tr) => tr.matches(".service") && tr.dataset.level === "ok")`)
	b.Eval(`(() => { const i = document.querySelector("#services input"); i.value = "team-03"; i.dispatchEvent(new Event("input")); })()`, nil)
	b.Check("a filter shows what it finds", rows+`.length === 8 && `+rows+`.every((tr) => tr.matches(".service"))`)
	b.Eval(`(() => { const i = document.querySelector("#services input"); i.value = ""; i.dispatchEvent(new Event("input")); })()`, nil)
}

// sorts checks that each column sorts up, down, and back.
func sorts(t *testing.T, b *chromiumtest.Browser) {
	t.Helper()
	for column, value := range map[int]string{1: `tr.cells[1].textContent`, 5: `parseInt(tr.cells[5].textContent)`} {
		for _, way := range []string{"ascending", "descending"} {
			b.Eval(fmt.Sprintf(`document.querySelectorAll("#services .sort")[%d].click()`, column), nil)
			if got := b.Text(fmt.Sprintf(`document.querySelectorAll("#services thead th")[%d].ariaSort`, column)); got != way {
				t.Errorf("column %d is %s, want %s", column, got, way)
			}
			before := "<="
			if way == "descending" {
				before = ">="
			}
			b.Check(fmt.Sprintf("column %d %s", column, way), `(() => { const v = `+rows+`.map((tr) => `+value+`); return v.length === 60 && v.slice(1).every((x, i) => v[i] `+before+` x); })()`)
		}
		b.Eval(fmt.Sprintf(`document.querySelectorAll("#services .sort")[%d].click()`, column), nil)
		b.Check("by problems again", `document.querySelectorAll("#services .group").length === 8`)
	}
}

func events(b *chromiumtest.Browser) {
	b.Check("warnings, the newest first", `[...document.querySelectorAll("#history ol b")].map((e) => e.textContent).join() === "UnreachableCluster,PortConflict"`)
	b.Check("times have a zone", `document.querySelector("#history time").textContent === "11:58:00 UTC"`)
	b.Check("what is not known", `document.querySelector("#history .unread").textContent.includes("Events of staging are unknown: no permission to list events in the whole cluster")`)
	b.Eval(`document.querySelector("#history .more").click()`, nil)
	b.Check("normal events", `document.querySelectorAll("#history ol li").length === 3`)
}

// copies checks that a button copies a command or a name, and which parts of a text are commands.
func copies(t *testing.T, b *chromiumtest.Browser) {
	t.Helper()
	b.Eval(`document.querySelector("#problems .copy").click()`, nil)
	b.Until(`document.querySelector("#problems .copy").textContent === "Copied"`)
	var copied string
	if b.Eval(`navigator.clipboard.readText()`, &copied); copied != "kubectl mcs forget ap-south-1-06" {
		t.Errorf("copied %q", copied)
	}
	for text, want := range map[string]string{
		"run kubectl mcs dns enable --context cls1":                                            "kubectl mcs dns enable --context cls1",
		"find the reason: kubectl --context a -n b logs web-1 --previous":                      "kubectl --context a -n b logs web-1 --previous",
		"wait: kubectl mcs check --wait 1m --context a; if it continues, kubectl describe pod": "kubectl mcs check --wait 1m --context a|kubectl describe pod",
		"run kubectl mcs install --context a, or set --controller-namespace":                   "kubectl mcs install --context a",
		"kubectl mcs status --context cls1,cls2":                                               "kubectl mcs status --context cls1,cls2",
		// no command, or not all of it
		"check routes and NetworkPolicies": "", "run kubectl mcs check in the stale clusters: their controllers are down": "", "kubectl mcs status with all contexts": "",
		"run kubectl mcs join --context a --cluster-id=… --clusterset-id=…": "", "run kubectl mcs forget x;reboot": "kubectl mcs forget x", "run kubectl mcs forget $(reboot)": "", "run kubectl mcs forget a`reboot`": "",
	} {
		encoded, err := json.Marshal(text)
		if err != nil {
			t.Fatal(err)
		}
		var got string
		if b.Eval(`import("/dom.js").then((m) => m.commands(`+string(encoded)+`).join("|"))`, &got); got != want {
			t.Errorf("the commands of %q are %q, want %q", text, got, want)
		}
	}
}

// cut returns the elements with text that end outside of the screen, or whose text is cut off.
const cut = `[...document.querySelectorAll("h1, h2, h3, dt, dd, p, li, th, td, button, code, time, .id, .chip, .badge, .remedy")].filter((e) => e.checkVisibility() && !e.closest(".heard, .skip") && !(e.closest("#services thead, .stack thead"))
  && (e.getBoundingClientRect().right > innerWidth + 0.5 || e.getBoundingClientRect().left < -0.5 || (e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).overflowX !== "visible"))).map((e) => e.tagName + " " + e.className + " " + e.textContent.slice(0, 40))`

// phone checks that nothing is cut on a small screen.
func phone(t *testing.T, b *chromiumtest.Browser) {
	t.Helper()
	check := func(what string) {
		t.Helper()
		b.Check(what+" does not scroll sideways", `document.documentElement.scrollWidth <= innerWidth && document.querySelector("#detail").scrollWidth <= innerWidth`)
		var elements []string
		if b.Eval(cut, &elements); len(elements) > 0 {
			t.Errorf("%s: cut off: %q", what, elements)
		}
	}
	check("the page")
	b.Check("clusters that are ok are folded", cells+`.length === 5 && document.querySelector("#clusters .more").textContent === "Show 27 clusters that are ok"`)
	b.Check("each cell of a service has its label", rows+`.find((tr) => tr.matches(".service")).cells[4].dataset.label === "Imported by"`)
	for _, route := range []string{"service/production/team-00/api", "cluster/production/ap-south-1-06", "cluster/production/eu-central-1-01"} {
		b.Eval(`location.hash = "#/`+route+`"`, nil)
		b.Until(`document.querySelector("#detail").open && location.hash.endsWith(document.querySelector("#detail-title").textContent) && !document.querySelector("#steps [aria-busy=true]")`)
		check(route)
	}
	b.Check("who is served", `document.querySelector("#detail-body").textContent.includes("Clusters that it serves")`)
}

// unknown opens the page when no context can be read.
func unknown(t *testing.T, b *chromiumtest.Browser) {
	t.Helper()
	f := &fleet{absent: broken(2).absent, events: []contextEvents{{context: "staging", err: errors.New("no permission to list events in the whole cluster")}, {context: "analytics", err: errors.New("i/o timeout")}}}
	url := (&changingSource{fleet: f}).start(t)
	open(b, url)
	b.Until(`!document.querySelector("#history .summary").textContent.startsWith("Reading")`)
	b.Check("nothing is said to be none", `document.querySelector("h1").textContent === "unknown" && document.querySelector("#figures dd").textContent.includes("unknown")`)
	b.Check("cards", cells+`.length === 2`)
	for selector, want := range map[string]string{
		"#map .empty": "Unknown: not all controllers answer.", "#paths .empty": "Unknown: no controller of these contexts says it.",
		"#services .empty": "Unknown: not all controllers answer.", "#history .summary": "Unknown: no events could be read.",
	} {
		if got := b.Text(`document.querySelector("` + selector + `").textContent`); got != want {
			t.Errorf("%s says %q, want %q", selector, got, want)
		}
	}
}

// TestBrowser_HostileNames shows names that would be HTML, scripts or addresses if they were not
// text.
func TestBrowser_HostileNames(t *testing.T) {
	b := chromiumtest.Start(t)
	url := (&changingSource{fleet: hostile()}).start(t)
	b.Look(1280, 800, "light")
	open(b, url)
	var name, want string
	b.Eval(cells+`[0].querySelector(".id").textContent`, &name)
	if want = strings.NewReplacer("\u202e", " ", "\x1b", " ").Replace(hostileName); name != want {
		t.Errorf("the name is shown as %q, want %q", name, want)
	}
	var hashes []string
	b.Eval(`[...document.querySelectorAll(".items a")].map((a) => a.getAttribute("href"))`, &hashes)
	for _, hash := range hashes {
		encoded, err := json.Marshal(hash)
		if err != nil {
			t.Fatal(err)
		}
		if strings.ContainsAny(hash, "<>\"\u202e\x1b") || !strings.HasPrefix(hash, "#/") {
			t.Errorf("the link %s is not encoded", hash)
		}
		b.Eval(`location.hash = `+string(encoded), nil)
		b.Until(`document.querySelector("#detail").open && document.querySelector("#detail-body").textContent`)
		b.Until(`document.querySelector("#steps [aria-busy=true]") === null`)
	}
	b.Check("no element of a name", `document.querySelectorAll("img, iframe, script:not([src='/app.js'])").length === 0`)
	b.Check("no script of a name", `document.title !== "owned"`)
	// What would a name do that became HTML in spite of all? The browser refuses to interpret it.
	b.Check("text is not set as HTML", `(() => { try { document.body.innerHTML = "<b>x</b>"; return false; } catch (e) { return e instanceof TypeError; } })()`)
	b.Check("text is not evaluated", `(() => { try { setTimeout("1"); return false; } catch (e) { return true; } })()`)
}

// TestBrowser_OtherSites checks that other pages cannot use the server, and that the page cannot
// send data to other servers.
func TestBrowser_OtherSites(t *testing.T) {
	b := chromiumtest.Start(t)
	url := (&changingSource{fleet: three()}).start(t)
	reached := make(chan string, 10)
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/" && r.URL.Path != "/favicon.ico" {
			reached <- r.URL.Path
		}
		w.Header().Set("Content-Type", "text/html")
		_, _ = w.Write([]byte("<title>other</title>"))
	}))
	defer other.Close()
	b.Look(1280, 800, "light")
	open(b, url)
	b.Check("a request to another server is refused", `fetch("`+other.URL+`/data").then(() => false, () => true)`)
	b.Check("a picture of another server is refused", `new Promise((done) => { const i = new Image(); i.onerror = () => done(true); i.onload = () => done(false); i.src = "`+other.URL+`/picture"; })`)
	b.Open(other.URL)
	b.Until(`document.title === "other"`)
	for _, path := range []string{"/", pathClusterset, pathEvents} {
		b.Check("another site reads "+path, `fetch("`+url+path+`", {headers: {Authorization: "Bearer `+testToken+`"}}).then(() => false, () => true)`)
		b.Check("another site loads "+path, `new Promise((done) => { const s = document.createElement("script"); s.onerror = () => done(true); s.onload = () => done(false); s.src = "`+url+path+`"; document.head.append(s); })`)
	}
	select {
	case path := <-reached:
		t.Errorf("the page has requested %s of another server", path)
	default:
	}
}

// TestBrowser_WithoutToken checks that the page says what to do without a token, with a wrong one,
// and when the server has ended.
func TestBrowser_WithoutToken(t *testing.T) {
	b := chromiumtest.Start(t)
	data := &changingSource{fleet: three()}
	url := data.start(t)
	b.Look(1280, 800, "light")
	b.Open(url + "/")
	b.Until(`document.querySelector("#live-text")?.textContent === "the token is not valid: open the URL that kubectl mcs ui printed"`)
	b.Check("no data", `!document.body.textContent.includes("frankfurt")`)
	// as if the user opens the URL in the same tab
	b.Eval(`location.hash = "#token=`+testToken+`"`, nil)
	b.Until(`document.querySelector("#live")?.dataset.level === "ok" && location.hash === ""`)

	server := httptest.NewUnstartedServer(nil)
	server.Config.Handler = newHandler(server.Listener.Addr().String(), testToken, source{clusterset: func(context.Context) Clusterset { return three().clusterset() }, history: func(context.Context) History { return three().history() }, interval: chromiumtest.Stuck})
	server.Start()
	open(b, server.URL)
	server.CloseClientConnections()
	server.Close()
	b.Until(`document.querySelector("#live").dataset.level === "bad" && document.querySelector("#live-text").textContent.includes("no connection to kubectl mcs ui")`)
	b.Check("the last data stays", cells+`.length === 3`)
}

// contrast returns the texts whose contrast is below that of WCAG 2.2, level AA: 4.5, or 3 for
// large text.
const contrast = `(() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const known = new Map();
  const draw = (colour) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); return [...canvas.getImageData(0, 0, 1, 1).data]; };
  const rgb = (colour) => known.get(colour) ?? known.set(colour, draw(colour)).get(colour);
  const luminance = ([r, g, b]) => { const f = (c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; return 0.2126 * f(r) + 0.7152 * f(g) + 0.0722 * f(b); };
  const back = (e) => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c[3] === 255) return c; } return rgb("white"); };
  const low = new Set();
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let n; (n = texts.nextNode());) {
    const e = n.parentElement;
    if (!n.data.trim() || !e.checkVisibility() || e.closest(".heard, .skip, noscript, :disabled")) continue;
    const style = getComputedStyle(e), a = luminance(rgb(style.color)), b = luminance(back(e));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const large = parseFloat(style.fontSize) >= 24 || parseFloat(style.fontSize) >= 18.66 && style.fontWeight >= 700;
    if (ratio < (large ? 3 : 4.5)) low.add(ratio.toFixed(2) + " " + e.className + " " + n.data.trim().slice(0, 40));
  }
  return [...low];
})()`

// TestBrowser_Looks checks the contrast of all texts in light and dark, and the names and roles for
// screen readers. With -pictures it writes the pictures of the docs.
func TestBrowser_Looks(t *testing.T) {
	b := chromiumtest.Start(t)
	for name, f := range map[string]*fleet{"3": three(), "300": many(300)} {
		f.unreachable = map[string]bool{f.members[len(f.members)-1].ClusterID: name == "300"}
		url := (&changingSource{fleet: f}).start(t)
		for _, scheme := range []string{"light", "dark"} {
			b.Look(1280, 1000, scheme)
			open(b, url)
			b.Until(`!document.querySelector("#history .summary").textContent.startsWith("Reading")`)
			low := []string{}
			if b.Eval(contrast, &low); len(low) > 0 {
				t.Errorf("%s clusters, %s: low contrast of %q", name, scheme, low)
			}
			if name == "3" { // the whole table of services
				var bottom float64
				b.Eval(`document.querySelector("#services").getBoundingClientRect().bottom`, &bottom)
				b.Look(1280, int(bottom)+20, scheme)
			}
			picture(t, b, "clusters-"+name+"-"+scheme)
			b.Eval(`document.querySelector("#services").scrollIntoView(); scrollBy(0, -20)`, nil)
			picture(t, b, "services-"+name+"-"+scheme)
			b.Eval(`scrollTo(0, 0)`, nil)
			if name == "3" {
				b.Eval(`location.hash = "#/service/production/shop/cart"`, nil)
				b.Until(`document.querySelector("#steps .failure")`)
				if b.Eval(contrast, &low); len(low) > 0 {
					t.Errorf("the detail, %s: low contrast of %q", scheme, low)
				}
				picture(t, b, "service-"+scheme)
				b.Eval(`location.hash = "#/cluster/production/virginia"`, nil)
				b.Until(`document.querySelector("#detail-title").textContent === "virginia"`)
				picture(t, b, "cluster-"+scheme)
				b.Eval(`location.hash = ""`, nil)
			}
		}
	}
	var tree struct {
		Nodes []struct {
			Ignored    bool
			Role, Name struct{ Value string }
		}
	}
	b.Call("Accessibility.getFullAXTree", nil, &tree)
	heard := map[string]int{}
	for _, n := range tree.Nodes {
		if n.Ignored {
			continue
		}
		heard[n.Role.Value]++
		if n.Name.Value == "" && (n.Role.Value == "link" || n.Role.Value == "button" || n.Role.Value == "searchbox" || n.Role.Value == "region" || n.Role.Value == "table") {
			t.Errorf("a %s has no name", n.Role.Value)
		}
	}
	for _, role := range []string{"banner", "main", "contentinfo", "region", "heading", "searchbox", "table", "columnheader", "rowheader", "list", "status"} {
		if heard[role] == 0 {
			t.Errorf("screen readers find no %s in %v", role, heard)
		}
	}
}

// picturesOfDocs are those that docs/kubectl-mcs.md and the README show.
var picturesOfDocs = map[string]string{"clusters-3-light": "clusterset", "service-light": "service"}

// picture writes a picture of the page if -pictures is set: those of the docs into docs, the others
// into a temporary directory for a look.
func picture(t *testing.T, b *chromiumtest.Browser, name string) {
	t.Helper()
	if !*pictures {
		return
	}
	dir := filepath.Join(os.TempDir(), "ui-pictures")
	if ofDocs := picturesOfDocs[name]; ofDocs != "" {
		dir, name = "../../../docs/ui", ofDocs
	}
	b.Picture(filepath.Join(dir, name+".png"))
}
