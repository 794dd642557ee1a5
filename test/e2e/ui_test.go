package e2e

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/chromiumtest"
)

// TestUI opens the page of kubectl mcs ui in a browser, follows a service on it, and sees a change.
func TestUI(t *testing.T) {
	t.Parallel()
	b := chromiumtest.Start(t)
	cls1, cls2 := installed(t)
	ns := namespace(t, cls1, cls2)
	apply(t, cls1, web(ns, "web", 2))
	export(t, cls1, ns, "web")
	eventually(t, started, func() error { return sameEndpoints(t.Context(), cls1, cls2, ns, "web", 2) })

	file := filepath.Join(t.TempDir(), "url")
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		// stop ends it with a signal
		_, _ = suite.Output(ctx, "exec kubectl mcs ui --context cls1,cls2 > "+file)
	}()
	defer func() {
		stop()
		<-ended
	}()
	var url string
	eventually(t, soon, func() error {
		text, err := os.ReadFile(file)
		url = strings.TrimSpace(string(text))
		if err == nil && !strings.Contains(url, "/#token=") {
			err = errors.New("it has not printed its URL")
		}
		return err
	})
	b.Look(1280, 860, "light")
	b.Open(url)
	b.Until(`document.querySelector("#live")?.dataset.level === "ok"`)
	b.Check("clusters", `["cls1", "cls2"].every((id) => [...document.querySelectorAll("#clusters .id")].some((e) => e.textContent === id))`)
	row := `[...document.querySelectorAll("#services tbody tr")].find((tr) => tr.cells[1].textContent === "` + ns + `/web")`
	b.Eval(`document.querySelector("#services input").value = "`+ns+`"; document.querySelector("#services input").dispatchEvent(new Event("input"))`, nil)
	b.Until(row + `?.cells[3].textContent.includes("cls1") && ` + row + `.cells[4].textContent.includes("cls2")`)

	// The page follows a service once. Under load a step may fail that does not later.
	const isDone = `document.querySelector("#steps [role=status]")?.getAttribute("aria-busy") === "false"`
	eventually(t, started, func() error {
		b.Eval(row+`.querySelector("a").click()`, nil)
		b.Until(isDone)
		steps := b.Text(`document.querySelector("#steps").textContent`)
		if b.Text(`document.querySelector("#steps .passed") !== null`) == "true" {
			return nil
		}
		b.Press("Escape")
		b.Eval(`document.querySelector("#steps").remove()`, nil)
		return errors.New(steps)
	})
	eventually(t, started, func() error {
		b.Eval(`document.querySelector("#steps .bar button").click()`, nil)
		b.Until(isDone)
		steps := b.Text(`document.querySelector("#steps").textContent`)
		if !strings.Contains(steps, "resolves to") || !strings.Contains(steps, "accepted by") {
			return errors.New(steps)
		}
		return nil
	})
	b.Press("Escape")

	kubectl(t, cls1, "-n", ns, "scale", "deployment/web", "--replicas=3")
	// 6 if the cluster has two IP families
	b.Until(`/^([36]) of \1$/.test(` + row + `.cells[5].textContent)`)
	for _, problem := range b.Reported() {
		t.Errorf("the page reports %s", problem)
	}
	stop()
	<-ended
	b.Until(`document.querySelector("#live").dataset.level === "bad"`)
}
