package main

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/docs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/chartvalues"
)

// pageURL matches the URL of a page of the documentation.
var pageURL = regexp.MustCompile(regexp.QuoteMeta(docs.URL("")) + `(?:[\w-]+/)*[\w-]+\.md(?:#[\w-]+)?`)

// cell escapes text for a cell of a table, where a page would hide <name>, and links the pages that
// it names.
func cell(text string) string {
	text = pageURL.ReplaceAllStringFunc(text, func(url string) string {
		page := strings.TrimPrefix(url, docs.URL(""))
		name, _, _ := strings.Cut(path.Base(page), "#")
		if name == "README.md" {
			name = path.Base(path.Dir(page))
		}
		return "[" + name + "](../" + page + ")"
	})
	return strings.NewReplacer("|", `\|`, "<", `\<`).Replace(text)
}

func flagsPage() (string, error) {
	var b strings.Builder
	b.WriteString("# Flags of the controller\n\n" +
		"Generated from `internal/config` by `make generate`. In each table the common flags, which `--help` shows, come before the advanced ones.\n\n" +
		"No flag is required in a pod. Settings of AWS that no flag sets come from the environment variables, files and roles of the AWS SDK.\n")
	options := config.Default()
	groups := options.FlagGroups()
	for _, name := range groups.Common.Order {
		fmt.Fprintf(&b, "\n## %s flags\n\n| flag | default | meaning |\n| --- | --- | --- |\n", strings.ToUpper(name[:1])+name[1:])
		writeFlags(&b, groups.Common.FlagSets[name])
		writeFlags(&b, groups.Advanced.FlagSets[name])
	}
	return b.String(), nil
}

func writeFlags(b *strings.Builder, flags *pflag.FlagSet) {
	flags.VisitAll(func(f *pflag.Flag) {
		value := ""
		if f.DefValue != "" {
			value = "`" + f.DefValue + "`"
		}
		fmt.Fprintf(b, "| `--%s` | %s | %s |\n", f.Name, value, cell(f.Usage))
	})
}

func valuesPage() (string, error) {
	const chart = "deploy/charts/cloud-map-mcs-controller"
	values, err := chartvalues.Read(chart)
	if err != nil {
		return "", err
	}
	options := config.Default()
	flags := options.Flags()
	var b strings.Builder
	b.WriteString("# Values of the Helm chart\n\n" +
		"Generated from `" + chart + "/values.yaml` by `make generate`. [install.md](../install.md) shows how to use them.\n\n" +
		"A value that sets a [flag](flags.md) names it in brackets. If it is empty, the default of the flag applies, which is in brackets too.\n")
	section := ""
	for _, v := range values {
		if v.Section != section {
			section = v.Section
			fmt.Fprintf(&b, "\n## %s\n\n| value | default | meaning |\n| --- | --- | --- |\n", section)
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", v.Path, defaultCell(v, flags), cell(v.Comment))
	}
	return b.String(), nil
}

func defaultCell(v chartvalues.Value, flags *pflag.FlagSet) string {
	if !slices.Contains([]string{`""`, "null", "[]", "{}"}, v.Default) {
		return "`" + v.Default + "`"
	}
	for _, name := range v.Flags {
		if f := flags.Lookup(name); f != nil && f.DefValue != "" && f.DefValue != "[]" {
			return "(`" + f.DefValue + "`)"
		}
	}
	return ""
}

// descriptions is a Registerer that collects the rows of the metrics page: a Prometheus registry
// shows no metric without a value.
type descriptions struct {
	prometheus.Registerer
	rows []string
}

// descriptionPattern matches the text of a prometheus.Desc, which has no other accessors.
var descriptionPattern = regexp.MustCompile(`fqName: "([^"]+)", help: "((?:[^"\\]|\\.)*)".*variableLabels: \{([^}]*)\}`)

// Register implements prometheus.Registerer.
func (d *descriptions) Register(c prometheus.Collector) error {
	ch := make(chan *prometheus.Desc)
	go func() {
		c.Describe(ch)
		close(ch)
	}()
	for desc := range ch {
		m := descriptionPattern.FindStringSubmatch(desc.String())
		if m == nil {
			return fmt.Errorf("unreadable description %s", desc)
		}
		d.rows = append(d.rows, fmt.Sprintf("| `%s` | %s | %s |\n", m[1], strings.ReplaceAll(m[3], ",", ", "), cell(m[2])))
	}
	return nil
}

func metricsPage() (string, error) {
	all := &descriptions{}
	if err := controller.DescribeMetrics(all); err != nil {
		return "", err
	}
	if _, err := registry.NewMetrics(all); err != nil {
		return "", err
	}
	slices.Sort(all.rows)
	return "# Metrics of the controller\n\n" +
		"Generated from the code by `make generate`. The metrics of controller-runtime and of the Go runtime are also exposed.\n\n" +
		"| metric | labels | meaning |\n| --- | --- | --- |\n" + strings.Join(all.rows, ""), nil
}
