package tutorial

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/clusterset"
)

// TestSteps checks which steps have commands for a third and a fourth cluster: they install, join,
// use the service and uninstall.
func TestSteps(t *testing.T) {
	for _, registry := range []string{clusterset.CloudMap, clusterset.Etcd} {
		for clusters, want := range map[int]string{2: "[] []", 3: "[1 2 3 4 11 15] []", 4: "[1 2 3 4 11 15] [1 2 3 4 11 15]"} {
			var third, fourth []int
			for _, step := range Steps(registry, clusters) {
				mentions := func(cluster string) bool {
					return slices.ContainsFunc(step.Commands, func(c Command) bool { return strings.Contains(c.Line, "--context "+cluster) })
				}
				if mentions("cls3") {
					third = append(third, step.Number)
				}
				if mentions("cls4") {
					fourth = append(fourth, step.Number)
				}
				if i := slices.IndexFunc(step.Commands, func(c Command) bool { return strings.Contains(c.Line, "CLS") }); i >= 0 {
					t.Errorf("step %d has no cluster in the command %s", step.Number, step.Commands[i].Line)
				}
			}
			if got := fmt.Sprint(third, " ", fourth); got != want {
				t.Errorf("%s with %d clusters: the steps %s have commands for cls3 and cls4, want %s", registry, clusters, got, want)
			}
		}
	}
}

// TestSplit checks which commands run at once, by their lines: lists that run at once are separated
// by a bar.
func TestSplit(t *testing.T) {
	command := func(line, cluster string) Command { return Command{Line: line, beside: cluster} }
	for _, test := range []struct {
		name     string
		commands []Command
		want     []string
	}{
		{"one after the other", []Command{command("a", ""), command("b", "")}, []string{"a", "b"}},
		{"clusters at once", []Command{command("a", "cls1"), command("b", "cls1"), command("c", "cls2"), command("d", "cls2"), command("e", "cls3")}, []string{"ab|cd|e"}},
		{"between others", []Command{command("a", ""), command("b", "cls1"), command("c", "cls2"), command("d", "")}, []string{"a", "b|c", "d"}},
		{"none", nil, nil},
	} {
		var got []string
		for _, lists := range split(test.commands) {
			var texts []string
			for _, list := range lists {
				text := ""
				for _, c := range list {
					text += c.Line
				}
				texts = append(texts, text)
			}
			got = append(got, strings.Join(texts, "|"))
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
}

// TestRun_AtOnce runs commands of two clusters at once: each waits for a file of the other one.
// Their output is in the order of the clusters.
func TestRun_AtOnce(t *testing.T) {
	dir := t.TempDir()
	meet := func(own, other string) Command {
		return wait(fmt.Sprintf("touch %[1]s/%[2]s; test -e %[1]s/%[3]s && echo %[2]s has met %[3]s", dir, own, other), 20*time.Second, nil)
	}
	first, second := meet("cls1", "cls2"), meet("cls2", "cls1")
	first.beside, second.beside = "cls1", "cls2"
	var out strings.Builder
	step := Step{Number: 1, Title: "Meet", Commands: []Command{first, second, run("echo end")}}
	if err := step.Run(t.Context(), &clusterset.Set{Root: dir}, &out); err != nil {
		t.Fatal(err)
	}
	if err := matches(`(?s)cls1 has met cls2.*cls2 has met cls1.*  end`)(out.String()); err != nil {
		t.Errorf("%v:\n%s", err, out.String())
	}
	step.Commands[1].Line, step.Commands[1].Within = "echo broken; false", 0
	if err := step.Run(t.Context(), &clusterset.Set{Root: dir}, &out); err == nil || !strings.Contains(err.Error(), "broken") {
		t.Errorf("a command of the second cluster fails, and the step returns %v", err)
	}
}

// TestMarkdown: a page has the commands of a step for cls1 with their output, without noise and
// lines that are not shown, and no duration of the step.
func TestMarkdown(t *testing.T) {
	step := Step{Number: 2, Title: "Look", Note: "A note.", Commands: append(both(run("first CLS"), run("second CLS")), run("last").first(2))}
	const printed = "\n== 2. Look\n\n$ first cls1\n  one\n\n  more\n\n$ second cls1\n\n$ first cls2\n  two\n\n$ second cls2\n\n$ last\n  Waiting for deployment \"web\"\n  (1.2 s)\n  end\n  more\n  last line\n   step 2 took 1.0 s\n"
	const want = "\n## 2. Look\n\nA note.\n\n```console\n$ first cls1\n  one\n\n  more\n\n$ second cls1\n\n$ last\n  end\n  more\n  …\n```\n"
	if got := step.Markdown(printed); got != want {
		t.Errorf("the section is %q, want %q", got, want)
	}
}
