// Package chromiumtest drives a Chromium without a window, for tests of pages.
package chromiumtest

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// A Browser is a Chromium with one page. It is driven by the DevTools protocol over pipes, so the
// test needs no other module: a command and its answer are a JSON object each, and end with a NUL.
type Browser struct {
	t       *testing.T
	ctx     context.Context
	in      *os.File
	session string

	mu      sync.Mutex
	next    int
	waiting map[int]chan answer
	// requests are the URLs that the page requested, errors what its scripts reported.
	requests, errors []string
}

type answer struct {
	Result json.RawMessage
	Error  *struct{ Message string }
}

// Stuck is the time after which a test fails that waits for the browser.
const Stuck = 3 * time.Minute

// Start starts Chromium, Debian's package chromium. Without it the test is skipped, or fails if
// REQUIRE_CHROMIUM is set.
func Start(t *testing.T) *Browser {
	t.Helper()
	program := find()
	if program == "" {
		if os.Getenv("REQUIRE_CHROMIUM") != "" {
			t.Fatal("REQUIRE_CHROMIUM is set and chromium is not on the PATH: apt-get install chromium")
		}
		t.Skip("needs Chromium: apt-get install chromium")
	}
	// Browser.close in the cleanup lets it remove its files
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), Stuck)
	toBrowser, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	out, fromBrowser, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	profile := t.TempDir()
	cmd := exec.CommandContext(ctx, program, "--headless=new", "--remote-debugging-pipe", "--user-data-dir="+profile,
		"--no-sandbox", // root cannot have a sandbox, and the page is ours
		"--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--force-color-profile=srgb", "--lang=en-US", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions", "--disable-default-apps", "--disable-breakpad", "about:blank")
	cmd.Env = append(os.Environ(), "TZ=UTC", "HOME="+profile)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.ExtraFiles = []*os.File{toBrowser, fromBrowser} // 3 and 4
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = toBrowser.Close()
	_ = fromBrowser.Close()
	b := &Browser{t: t, ctx: ctx, in: in, waiting: map[int]chan answer{}}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		b.read(bufio.NewReader(out))
	}()
	t.Cleanup(func() {
		_, _ = b.send("", "Browser.close", nil)
		_ = in.Close()
		<-ended
		_ = cmd.Wait()
		cancel()
		// the processes that it started: t.TempDir fails if they write while it removes the profile
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		for range 100 {
			if os.RemoveAll(profile) == nil {
				break
			}
		}
	})
	var target struct{ TargetID, SessionID string }
	b.Call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	b.Call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &target)
	b.session = target.SessionID
	for _, domain := range []string{"Page", "Runtime", "Network", "Log"} {
		b.Call(domain+".enable", nil, nil)
	}
	return b
}

// find returns the path of Chromium, "" if there is none. On the machines of CI it is a Chrome.
func find() string {
	for _, name := range []string{"chromium", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}

// read receives answers and events until the browser ends.
func (b *Browser) read(out *bufio.Reader) {
	for {
		text, err := out.ReadBytes(0)
		if err != nil {
			return
		}
		var message struct {
			answer
			ID     int
			Method string
			Params struct {
				Request          struct{ URL string }
				Entry            struct{ Level, Text string }
				ExceptionDetails struct {
					Text      string
					Exception struct{ Description string }
				}
			}
		}
		if json.Unmarshal(text[:len(text)-1], &message) != nil {
			continue
		}
		b.mu.Lock()
		switch message.Method {
		case "Network.requestWillBeSent":
			b.requests = append(b.requests, message.Params.Request.URL)
		case "Runtime.exceptionThrown":
			b.errors = append(b.errors, message.Params.ExceptionDetails.Text+" "+message.Params.ExceptionDetails.Exception.Description)
		case "Log.entryAdded":
			if message.Params.Entry.Level == "error" {
				b.errors = append(b.errors, message.Params.Entry.Text)
			}
		}
		if wait := b.waiting[message.ID]; wait != nil {
			delete(b.waiting, message.ID)
			wait <- message.answer
		}
		b.mu.Unlock()
	}
}

// send sends a command and returns the channel of its answer.
func (b *Browser) send(session, method string, params any) (chan answer, error) {
	wait := make(chan answer, 1)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.next++
	b.waiting[b.next] = wait
	command := map[string]any{"id": b.next, "method": method}
	if params != nil {
		command["params"] = params
	}
	if session != "" {
		command["sessionId"] = session
	}
	text, err := json.Marshal(command)
	if err == nil {
		_, err = b.in.Write(append(text, 0))
	}
	return wait, err
}

// Call runs a command of the protocol.
func (b *Browser) Call(method string, params, into any) {
	b.t.Helper()
	if err := b.try(method, params, into); err != nil {
		b.t.Fatalf("%s %v: %v", method, params, err)
	}
}

func (b *Browser) try(method string, params, into any) error {
	wait, err := b.send(b.session, method, params)
	if err != nil {
		return err
	}
	select {
	case a := <-wait:
		if a.Error != nil {
			err = errors.New(a.Error.Message)
		} else if into != nil {
			err = json.Unmarshal(a.Result, into)
		}
	case <-b.ctx.Done():
		err = fmt.Errorf("no answer in %s; the page reported %q", Stuck, b.Reported())
	}
	return err
}

// Eval evaluates an expression on the page, waits if it is a promise, and stores the value.
func (b *Browser) Eval(expression string, into any) {
	b.t.Helper()
	var result struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails *exception
	}
	b.Call("Runtime.evaluate", map[string]any{"expression": expression, "awaitPromise": true, "returnByValue": true}, &result)
	if result.ExceptionDetails != nil {
		b.t.Fatalf("%s: %s", expression, result.ExceptionDetails.Exception.Description)
	}
	if into != nil {
		if err := json.Unmarshal(result.Result.Value, into); err != nil {
			b.t.Fatalf("%s: %v", expression, err)
		}
	}
}

// Text returns the value of an expression as text.
func (b *Browser) Text(expression string) (text string) {
	b.t.Helper()
	b.Eval("String("+expression+")", &text)
	return text
}

// Until waits until an expression is true. The page evaluates it for each frame that it draws, and
// the next page if there is one.
func (b *Browser) Until(condition string) {
	b.t.Helper()
	expression := `new Promise((resolve) => { const look = () => (` + condition + `) ? resolve() : requestAnimationFrame(look); look(); })`
	for {
		var result struct{ ExceptionDetails *exception }
		err := b.try("Runtime.evaluate", map[string]any{"expression": expression, "awaitPromise": true}, &result)
		switch {
		case err != nil && (strings.Contains(err.Error(), "navigated") || strings.Contains(err.Error(), "context")) && b.ctx.Err() == nil:
			continue // the page that evaluated it is gone
		case err != nil:
			b.t.Fatalf("%s: %v", condition, err)
		case result.ExceptionDetails != nil:
			b.t.Fatalf("%s: %s", condition, result.ExceptionDetails.Exception.Description)
		}
		return
	}
}

// An exception is the error of an expression.
type exception struct{ Exception struct{ Description string } }

// Check reports an error if an expression is not true.
func (b *Browser) Check(what, condition string) {
	b.t.Helper()
	var ok bool
	if b.Eval("Boolean("+condition+")", &ok); !ok {
		b.t.Errorf("%s: %s is false", what, condition)
	}
}

// Press presses a key such as ArrowDown, Enter or a character.
func (b *Browser) Press(keys ...string) {
	b.t.Helper()
	codes := map[string]int{"Enter": 13, "Escape": 27, "Tab": 9, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
	for _, key := range keys {
		params := map[string]any{"type": "keyDown", "key": key, "code": key, "windowsVirtualKeyCode": codes[key]}
		if text := strings.ReplaceAll(key, "Enter", "\r"); len(text) == 1 {
			params["text"] = text
		}
		b.Call("Input.dispatchKeyEvent", params, nil)
		b.Call("Input.dispatchKeyEvent", map[string]any{"type": "keyUp", "key": key, "code": key, "windowsVirtualKeyCode": codes[key]}, nil)
	}
}

// Look sets the size of the page, in CSS pixels, and light or dark colours.
func (b *Browser) Look(width, height int, scheme string) {
	b.t.Helper()
	b.Call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false}, nil)
	b.Call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{
		{"name": "prefers-color-scheme", "value": scheme}, {"name": "prefers-reduced-motion", "value": "reduce"},
	}}, nil)
}

// Open opens an address. An address that differs only in its fragment is opened anew, too.
func (b *Browser) Open(url string) {
	b.t.Helper()
	b.Call("Page.navigate", map[string]any{"url": "about:blank"}, nil)
	b.Call("Page.navigate", map[string]any{"url": url}, nil)
}

// Screenshot returns a picture of the page as PNG.
func (b *Browser) Screenshot() []byte {
	b.t.Helper()
	var shot struct{ Data string }
	b.Call("Page.captureScreenshot", map[string]any{"format": "png"}, &shot)
	png, err := base64.StdEncoding.DecodeString(shot.Data)
	if err != nil {
		b.t.Fatal(err)
	}
	return png
}

// Reported returns the errors of the page.
func (b *Browser) Reported() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.errors
}

// Requested returns the URLs that the page requested.
func (b *Browser) Requested() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.requests
}
