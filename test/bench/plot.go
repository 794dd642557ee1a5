package main

import (
	"fmt"
	"html"
	"math"
	"strconv"
	"strings"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/clusterset"
)

// chart is an SVG chart that is legible on light and on dark pages.
type chart struct {
	strings.Builder
	width, height int
}

const style = `<style>
text { font: 13px system-ui, sans-serif; fill: #24292f } .small { font-size: 11px } .title { font-size: 15px; font-weight: 600 }
.axis { stroke: #8c959f } .grid { stroke: #d0d7de } .notified { stroke: #0969da; fill: #0969da } .poll { stroke: #8250df; fill: #8250df } .legacy { stroke: #cf222e; fill: #cf222e }
.line { fill: none; stroke-width: 2 } .light { opacity: .35 } .dashed { stroke-dasharray: 4 }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .grid { stroke: #30363d } .notified { stroke: #58a6ff; fill: #58a6ff } .poll { stroke: #bc8cff; fill: #bc8cff } .legacy { stroke: #ff7b72; fill: #ff7b72 } }
</style>
`

func newChart(width, height int, title string) *chart {
	p := &chart{width: width, height: height}
	fmt.Fprintf(p, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img"><title>%s</title>`+"\n%s", width, height, html.EscapeString(title), style)
	p.text(16, 24, "start", "title", title)
	return p
}

func (p *chart) text(x, y float64, anchor, class, text string) {
	fmt.Fprintf(p, `<text x="%.1f" y="%.1f" text-anchor="%s" class="%s">%s</text>`+"\n", x, y, anchor, class, html.EscapeString(text))
}

func (p *chart) line(class string, x1, y1, x2, y2 float64) {
	fmt.Fprintf(p, `<line class="%s" x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f"/>`+"\n", class, x1, y1, x2, y2)
}

func (p *chart) rect(class string, x, y, width, height float64) {
	fmt.Fprintf(p, `<rect class="%s" stroke="none" x="%.1f" y="%.1f" width="%.1f" height="%.1f"/>`+"\n", class, x, y, width, height)
}

// polyline draws a line through points, with a dot on each.
func (p *chart) polyline(class string, points [][2]float64) {
	var at []string
	for _, pt := range points {
		at = append(at, fmt.Sprintf("%.1f,%.1f", pt[0], pt[1]))
		fmt.Fprintf(p, `<circle class="%s" cx="%.1f" cy="%.1f" r="3.5"/>`+"\n", class, pt[0], pt[1])
	}
	fmt.Fprintf(p, `<polyline class="%s line" points="%s"/>`+"\n", class, strings.Join(at, " "))
}

func (p *chart) svg() string { return p.String() + "</svg>\n" }

// logScale maps values to pixels by their logarithm.
func logScale(low, high, from, to float64) func(float64) float64 {
	return func(v float64) float64 {
		return from + (math.Log10(v)-math.Log10(low))/(math.Log10(high)-math.Log10(low))*(to-from)
	}
}

// callsPlot plots calls per minute over exports for the largest clusterset. The number of clusters
// hardly matters.
func (r *Results) callsPlot() string {
	p := newChart(760, 380, "Cloud Map calls per minute and cluster while nothing changes")
	x, y := logScale(1, 3000, 80, 560), logScale(10, 5000, 330, 50)
	for _, v := range []float64{10, 20, 50, 100, 200, 500, 1000, 2000, 5000} {
		p.line("grid", 80, y(v), 560, y(v))
		p.text(72, y(v)+4, "end", "small", fmt.Sprintf("%.0f", v))
	}
	for _, v := range []float64{1, 50, 300, 3000} {
		p.line("axis", x(v), 330, x(v), 335)
		p.text(x(v), 350, "middle", "small", fmt.Sprintf("%.0f", v))
	}
	p.text(320, 370, "middle", "small", "exports in the clusterset, logarithmic")
	clusters := 0
	for _, s := range r.Steady {
		clusters = max(clusters, s.Clusters)
	}
	lines := map[bool][][2]float64{}
	for _, s := range r.Steady {
		if s.Clusters == clusters {
			lines[s.Notifications] = append(lines[s.Notifications], [2]float64{x(float64(s.Exports)), y(s.PerMinute)})
		}
	}
	var measured [][2]float64
	for _, exports := range []int{1, 50, 300} {
		measured = append(measured, [2]float64{x(float64(exports)), y(legacy.callsPerMinute[exports])})
	}
	p.series("legacy", "legacy controller", measured)
	p.series("poll", fmt.Sprintf("without peer notifications, %d clusters", clusters), lines[false])
	p.series("notified", fmt.Sprintf("with peer notifications, %d clusters", clusters), lines[true])
	return p.svg()
}

// series draws a polyline with its name at the end.
func (p *chart) series(class, name string, points [][2]float64) {
	if len(points) == 0 {
		return
	}
	p.polyline(class, points)
	last := points[len(points)-1]
	p.text(last[0]+10, last[1]+4, "start", "", name)
}

// propagationPlot draws a bar for each line of the table: dark up to the median, light up to the
// 99th percentile.
func (r *Results) propagationPlot() string {
	const row, left, right = 24, 290, 640
	p := newChart(760, 90+row*(len(r.Propagation)+1), "Milliseconds from an endpoint's change to the imported EndpointSlice")
	x := logScale(10, 10_000, left, right)
	bottom := float64(50 + row*(len(r.Propagation)+1))
	for _, v := range []float64{10, 30, 100, 300, 1000, 3000, 10_000} {
		p.line("grid", x(v), 40, x(v), bottom)
		p.text(x(v), bottom+16, "middle", "small", fmt.Sprintf("%.0f", v))
	}
	p.text(left, bottom+34, "start", "small", "dark: median; light: 99th percentile; logarithmic scale")
	bar := func(i int, class, name string, p50, p99 float64) {
		top := float64(44 + row*i)
		p.text(left-8, top+14, "end", "small", name)
		p.rect(class+" light", left, top+2, x(max(p99, 10))-left, row-6)
		p.rect(class, left, top+2, x(max(p50, 10))-left, row-6)
		p.text(x(max(p99, 10))+6, top+14, "start", "small", fmt.Sprintf("%.0f, %.0f", p50, p99))
	}
	for i, s := range r.Propagation {
		class := "notified"
		if !s.Notifications && s.Registry == clusterset.CloudMap {
			class = "poll"
		}
		name := fmt.Sprintf("%s, %d at once, delay %d ms, notifications %s", s.Change, s.AtOnce, s.DelayMS, s.notifications())
		if s.Registry != clusterset.CloudMap {
			name = fmt.Sprintf("%s, %d at once, %s", s.Change, s.AtOnce, s.Registry)
		}
		bar(i, class, name, s.P50, s.P99)
	}
	bar(len(r.Propagation), "legacy", "legacy controller, delay 0", legacy.addP50, legacy.addP99)
	return p.svg()
}

// fleetPanel is a value of the section fleet over the number of clusters.
type fleetPanel struct {
	title     string
	low, high float64
	// limit is the target or the quota at 1,000 clusters; etcd has its own or none.
	limit, etcdLimit float64
	lines            []fleetLine
}

// fleetLine is a line for each registry that has the value.
type fleetLine struct {
	name  string
	value func(Fleet) float64
	// cloudMapOnly leaves etcd out.
	cloudMapOnly bool
}

var fleetPanels = []fleetPanel{
	{"memory at most, MiB", 50, 1000, limitOf(fleetSection, "memory, MiB"), 0, []fleetLine{{"", Fleet.mostMemory, false}}},
	{"CPU, % of a core, while nothing changes and in a rollout", 0.1, 100, limitOf(fleetSection, "idle CPU, %"), 0, []fleetLine{
		{"", func(f Fleet) float64 { return f.Steady.CPUPercent() }, false}, {"rollout", func(f Fleet) float64 { return f.Rollout.CPUPercent() }, false},
	}},
	{"reads a second of all clusters, and the quota", 1, 100_000, limitOf(fleetSection, "idle reads a second"), 0, []fleetLine{
		{"", func(f Fleet) float64 { return f.readsOfAccount(f.Steady) }, true}, {"rollout", func(f Fleet) float64 { return f.readsOfAccount(f.Rollout) }, true},
	}},
	{"propagation, ms, p50 and p99", 5, 10_000, limitOf(fleetSection, "p99 on Cloud Map, ms"), limitOf(fleetSection, "p99 on etcd, ms"), []fleetLine{
		{"p50", func(f Fleet) float64 { return f.Propagation.P50 }, false}, {"p99", func(f Fleet) float64 { return f.Propagation.P99 }, false},
	}},
}

// fleetPlot plots the section fleet: a panel for each value, a line for each registry, and the
// targets.
func (r *Results) fleetPlot() string {
	const width, height, top = 380, 260, 50
	p := newChart(2*width, 2*height+top+30, "One controller in a fleet of 10 to 1,000 clusters")
	for i, panel := range fleetPanels {
		r.fleetPanel(p, panel, float64(i%2*width), float64(top+i/2*height))
	}
	p.text(16, 2*height+top+14, "start", "small", "blue: Cloud Map; purple: etcd; red: targets at 1,000 clusters, dashed for etcd; all scales are logarithmic")
	return p.svg()
}

func (r *Results) fleetPanel(p *chart, panel fleetPanel, left, top float64) {
	x, y := logScale(10, 1000, left+60, left+300), logScale(panel.low, panel.high, top+200, top+20)
	p.text(left+60, top+8, "start", "small", panel.title)
	for v := math.Pow10(int(math.Ceil(math.Log10(panel.low)))); v <= panel.high; v *= 10 {
		p.line("grid", x(10), y(v), x(1000), y(v))
		p.text(x(10)-6, y(v)+4, "end", "small", strconv.FormatFloat(v, 'f', -1, 64))
	}
	for _, v := range []float64{10, 100, 300, 1000} {
		p.text(x(v), top+218, "middle", "small", fmt.Sprintf("%.0f", v))
	}
	p.line("legacy", x(10), y(panel.limit), x(1000), y(panel.limit))
	if panel.etcdLimit > 0 {
		p.line("legacy dashed", x(10), y(panel.etcdLimit), x(1000), y(panel.etcdLimit))
	}
	for _, line := range panel.lines {
		points := map[bool][][2]float64{}
		for _, f := range r.Fleet {
			if v := line.value(f); f.onCloudMap() || !line.cloudMapOnly {
				points[f.onCloudMap()] = append(points[f.onCloudMap()], [2]float64{x(float64(f.Clusters)), y(min(max(v, panel.low), panel.high))})
			}
		}
		p.series("notified", line.name, points[true])
		p.series("poll", line.name, points[false])
	}
}
