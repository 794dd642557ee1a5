package tutorial

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/clusterset"
)

// Run performs one step on a clusterset and prints each command with its output and duration. The
// error names the command, the failed check, and the last output.
func (step Step) Run(ctx context.Context, set *clusterset.Set, out io.Writer) error {
	start := time.Now()
	fmt.Fprintf(out, "\n== %d. %s\n", step.Number, step.Title)
	for _, lists := range split(step.Commands) {
		if err := runAtOnce(ctx, set, out, lists); err != nil {
			return fmt.Errorf("step %d (%s): %w", step.Number, step.Title, err)
		}
	}
	fmt.Fprintf(out, "   step %d took %.1f s\n", step.Number, time.Since(start).Seconds())
	return nil
}

// split returns the lists of commands that run at once, in the order in which they run: a command
// alone, or the commands of each cluster.
func split(commands []Command) (out [][][]Command) {
	for i, c := range commands {
		switch {
		case c.beside == "" || i == 0 || commands[i-1].beside == "":
			out = append(out, [][]Command{{c}})
		case commands[i-1].beside != c.beside:
			out[len(out)-1] = append(out[len(out)-1], []Command{c})
		default:
			lists := out[len(out)-1]
			lists[len(lists)-1] = append(lists[len(lists)-1], c)
		}
	}
	return out
}

// runAtOnce runs lists of commands at the same time and prints them one after the other, the first
// one as it happens.
func runAtOnce(ctx context.Context, set *clusterset.Set, out io.Writer, lists [][]Command) error {
	errs, printed := make([]error, len(lists)), make([]bytes.Buffer, len(lists))
	run := func(i int, out io.Writer) {
		for _, c := range lists[i] {
			if errs[i] = c.run(ctx, set, out); errs[i] != nil {
				return
			}
		}
	}
	var running sync.WaitGroup
	for i := range lists[1:] {
		running.Go(func() { run(i+1, &printed[i+1]) })
	}
	run(0, out)
	running.Wait()
	for i := range printed {
		if _, err := printed[i].WriteTo(out); err != nil {
			return err
		}
	}
	return errors.Join(errs...)
}

func (c Command) run(ctx context.Context, set *clusterset.Set, out io.Writer) error {
	start := time.Now()
	fmt.Fprintf(out, "\n$ %s\n", c.Line)
	var output string
	attempt := func() error {
		var err error
		output, err = set.Output(ctx, c.Line)
		return c.checkResult(output, err)
	}
	var err error
	if c.Within > 0 {
		err = clusterset.Eventually(ctx, c.Within, attempt)
	} else {
		err = attempt()
	}
	fmt.Fprint(out, indent(output))
	if took := time.Since(start); took > time.Second {
		fmt.Fprintf(out, "  (%.1f s)\n", took.Seconds())
	}
	if err != nil {
		return fmt.Errorf("%s: %w; it printed:\n%s", c.Line, err, indent(output))
	}
	return nil
}

func (c Command) checkResult(output string, err error) error {
	switch {
	case c.Fails && err == nil:
		return errors.New("the command succeeded and should not have")
	case !c.Fails && err != nil:
		return err
	case c.Check != nil:
		return c.Check(output)
	}
	return nil
}

func indent(text string) string {
	if text = strings.TrimRight(text, "\n"); text == "" {
		return ""
	}
	return "  " + strings.ReplaceAll(text, "\n", "\n  ") + "\n"
}

// Introduction returns the beginning of the page, before the sections of Markdown.
func Introduction(registry string) string {
	title := "# The walk-through\n"
	if registry != clusterset.CloudMap {
		title = "# The walk-through on " + registries[registry].name + "\n"
	}
	return title + `
The steps of ` + "`make demo`" + ` with their output, on two Kubernetes clusters of the testbed: from installing to uninstalling. The pod networks of
` + "`cls1` and `cls2`" + ` are routed to each other, and the service CIDR is the same in both. Commands that repeat others are left out, and
` + "`…`" + ` marks omitted output. ` + registries[registry].introduction
}

// noise matches lines of output that say nothing about the step.
var noise = regexp.MustCompile(`^  (;; Got recursion not available|Waiting for deployment |\(\d+\.\d s\)$)`)

// Markdown returns the step as a section of a page, with the output of Run: without the commands
// that repeat those of another cluster, noise, and the duration of the step.
func (step Step) Markdown(printed string) string {
	_, body, _ := strings.Cut(strings.TrimLeft(printed, "\n"), "\n")
	body, _, _ = strings.Cut(body, fmt.Sprintf("   step %d took ", step.Number))
	var shown []string
	for i, text := range strings.Split("\n"+strings.Trim(body, "\n"), "\n$ ")[1:] {
		if !step.Commands[i].again {
			shown = append(shown, "$ "+step.Commands[i].shorten(strings.TrimRight(text, "\n")))
		}
	}
	return fmt.Sprintf("\n## %d. %s\n\n%s\n\n```console\n%s\n```\n", step.Number, step.Title, step.Note, strings.Join(shown, "\n\n"))
}

// shorten returns the text of a command, its line and its output, as pages have it.
func (c Command) shorten(text string) string {
	lines := slices.DeleteFunc(strings.Split(text, "\n"), noise.MatchString)
	if c.shown > 0 && len(lines) > 1+c.shown {
		lines = append(lines[:1+c.shown], "  …")
	}
	return strings.Join(lines, "\n")
}
