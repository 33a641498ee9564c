package main

import (
	"context"
	"fmt"
	"maps"
	"math"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"
)

// String is a sample on one line.
func (s *sample) String() string {
	switch {
	case s.Idle:
		return fmt.Sprintf("%.3f %% of a core, %d MiB%s", s.cores(), s.RSS>>20, s.own())
	case s.Latency != nil:
		return fmt.Sprintf("%7.0f msg/s offered  p50 %v  p99 %v  p99.9 %v", s.Offered, s.Latency.P50, s.Latency.P99, s.Latency.P999)
	}
	capped := ""
	if s.Capped {
		capped = "  (time was over first)"
	}
	return fmt.Sprintf("%8.0f msg/s  %6.2f µs CPU  %5.1f allocs  %4d MiB%s%s", s.rate(), s.cpuMicros(), s.mallocs(), s.RSS>>20, s.own(), capped)
}

// own are the figures of the job's own.
func (s *sample) own() string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(s.Figures)) {
		fmt.Fprintf(&b, "  %s %s", name, number(s.Figures[name]))
	}
	return b.String()
}

// report is what the run found.
type report struct {
	facts  [][2]string
	tables []table
	notes  []string
}

type table struct {
	name, title string
	head        []string
	rows        [][]string
	targets     []string
}

func median(x []float64) float64 {
	if len(x) == 0 {
		return math.NaN()
	}
	x = slices.Sorted(slices.Values(x))
	if n := len(x); n%2 == 0 {
		return (x[n/2-1] + x[n/2]) / 2
	}
	return x[len(x)/2]
}

// of are the samples of one contestant in a job, by round.
func (b *bench) of(job, who string) []*sample {
	var mine []*sample
	for _, s := range b.samples {
		if s.Job == job && s.Contestant == who {
			mine = append(mine, s)
		}
	}
	return mine
}

// figure is the median of what f makes of the contestant's samples.
func (b *bench) figure(job, who string, f func(*sample) float64) float64 {
	var x []float64
	for _, s := range b.of(job, who) {
		x = append(x, f(s))
	}
	return median(x)
}

// against is the median over the rounds of what f makes of two samples of the same round.
func (b *bench) against(job, who, than string, f func(a, b *sample) float64) float64 {
	var x []float64
	for _, s := range b.of(job, who) {
		for _, o := range b.of(job, than) {
			if o.Round == s.Round {
				x = append(x, f(s, o))
			}
		}
	}
	return median(x)
}

var (
	rate    = (*sample).rate
	cpu     = (*sample).cpuMicros
	allocs  = (*sample).mallocs
	rss     = func(s *sample) float64 { return float64(s.RSS) / (1 << 20) }
	cores   = (*sample).cores
	p50     = func(s *sample) float64 { return micros(s.Latency.P50) }
	p99     = func(s *sample) float64 { return micros(s.Latency.P99) }
	p999    = func(s *sample) float64 { return micros(s.Latency.P999) }
	offered = func(s *sample) float64 { return s.Offered }
	ratio   = func(f func(*sample) float64) func(a, b *sample) float64 {
		return func(a, b *sample) float64 { return f(a) / f(b) }
	}
	excess = func(f func(*sample) float64) func(a, b *sample) float64 {
		return func(a, b *sample) float64 { return f(a) - f(b) }
	}
	own = func(name string) func(*sample) float64 {
		return func(s *sample) float64 {
			if f, ok := s.Figures[name]; ok {
				return f
			}
			return math.NaN()
		}
	}
	micros    = func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }
	undefined = "-"
)

// check says whether a target is met; "" when it was not measured.
func (b *bench) check(job string, t target) string {
	var got float64
	met := func(g float64) bool { return g <= t.bound }
	switch t.what {
	case "rate":
		if got = b.figure(job, t.contestant, rate); t.than != "" {
			got = b.against(job, t.contestant, t.than, ratio(rate))
		}
		met = func(g float64) bool { return g >= t.bound }
	case "cpu":
		got = b.against(job, t.contestant, t.than, ratio(cpu))
	case "allocs":
		got = b.figure(job, t.contestant, allocs)
		met = func(g float64) bool { return math.Round(g*10) <= t.bound*10 }
	case "rss":
		got = b.figure(job, t.contestant, rss)
	case "idle":
		got = b.figure(job, t.contestant, cores)
	case "p50":
		got = b.against(job, t.contestant, t.than, excess(p50))
	case "p99":
		got = b.against(job, t.contestant, t.than, excess(p99))
	default:
		got = b.figure(job, t.contestant, own(t.what))
	}
	if math.IsNaN(got) {
		return ""
	}
	return verdict(t.String(), got, met(got))
}

func verdict(what string, got float64, met bool) string {
	word := "MISSED"
	if met {
		word = "met"
	}
	return fmt.Sprintf("%s: %s, %s", what, number(got), word)
}

func number(f float64) string {
	switch {
	case math.IsNaN(f):
		return undefined
	case math.Abs(f) >= 1000:
		s := strconv.FormatFloat(f, 'f', 0, 64)
		for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
			s = s[:i] + "," + s[i:]
		}
		return s
	case math.Abs(f) >= 100:
		return strconv.FormatFloat(f, 'f', 0, 64)
	case math.Abs(f) >= 10:
		return strconv.FormatFloat(f, 'f', 1, 64)
	}
	return strconv.FormatFloat(f, 'f', 2, 64)
}

// report makes tables of the samples.
func (b *bench) report(ctx context.Context, chosen []*job, begun time.Time) *report {
	r := &report{facts: b.facts(ctx, begun), notes: b.notes}
	for _, j := range chosen {
		var t table
		switch {
		case j.still:
			t.head = append([]string{"contestant", "% of a core", "peak RSS MiB"}, j.figures...)
		case j.percent > 0:
			t.head = []string{"contestant", "msg/s", "p50 µs", "p99 µs", "p99.9 µs", "p50 over", "p99 over", "CPU µs"}
		default:
			t.head = []string{"contestant", "msg/s", "ratio", "of rounds", "CPU µs", "ratio", "server µs", "allocs", "peak RSS MiB"}
			t.head = append(append(t.head, j.figures...), "")
		}
		first := j.contestants[0]
		for _, who := range b.chosen(j) {
			mine := b.of(j.name, who)
			if len(mine) == 0 {
				t.rows = append(t.rows, []string{who, "failed"})
				continue
			}
			fig := func(f func(*sample) float64) string { return number(b.figure(j.name, who, f)) }
			vs := func(f func(a, b *sample) float64) string { return number(b.against(j.name, who, first, f)) }
			var figures []string
			for _, name := range j.figures {
				figures = append(figures, fig(own(name)))
			}
			switch {
			case j.still:
				t.rows = append(t.rows, append([]string{who, fmt.Sprintf("%.3f", b.figure(j.name, who, cores)), fig(rss)}, figures...))
			case j.percent > 0:
				t.rows = append(t.rows, []string{who, fig(offered), fig(p50), fig(p99), fig(p999), vs(excess(p50)), vs(excess(p99)), fig(cpu)})
			default:
				var capped string
				if slices.ContainsFunc(mine, func(s *sample) bool { return s.Capped }) {
					capped = "time was over first"
				}
				row := []string{
					who, fig(rate), vs(ratio(rate)), b.spread(j.name, who, first), fig(cpu), vs(ratio(cpu)), fig((*sample).serverMicros), fig(allocs),
					fig(rss),
				}
				t.rows = append(t.rows, append(append(row, figures...), capped))
			}
		}
		for _, tg := range j.targets {
			if c := b.check(j.name, tg); c != "" {
				t.targets = append(t.targets, c)
			}
		}
		t.targets = append(t.targets, b.checkSubjects(j)...)
		t.name, t.title = j.name, j.title
		r.tables = append(r.tables, t)
	}
	return r
}

// spread is the least and the greatest ratio of the rates, which tells how much noise there was.
func (b *bench) spread(job, who, than string) string {
	low, high := math.Inf(1), math.Inf(-1)
	b.against(job, who, than, func(a, c *sample) float64 {
		f := a.rate() / c.rate()
		low, high = min(low, f), max(high, f)
		return f
	})
	if math.IsInf(low, 0) {
		return undefined
	}
	return fmt.Sprintf("%.2f–%.2f", low, high)
}

// checkSubjects compares relay's rate with the one at 100 subjects.
func (b *bench) checkSubjects(j *job) (found []string) {
	if !strings.HasPrefix(j.name, "subjects-") || j.name == "subjects-100" {
		return nil
	}
	for _, who := range []string{"library", "binary"} {
		got := b.figure(j.name, who, rate) / b.figure("subjects-100", who, rate)
		if !math.IsNaN(got) {
			found = append(found, verdict(who+" within 20 % of its rate at 100 subjects", got, got >= 0.8))
		}
	}
	return found
}

// facts are what somebody needs to do the same again.
func (b *bench) facts(ctx context.Context, begun time.Time) [][2]string {
	f := [][2]string{
		{"date", begun.UTC().Format("2006-01-02 15:04 MST") + ", " + time.Since(begun).Round(time.Second).String()},
		{"command", strings.Join(append([]string{"bench"}, os.Args[1:]...), " ")},
		{"rounds", fmt.Sprint(b.rounds)},
		{"seed", fmt.Sprint(b.seed)},
		{"machine", fmt.Sprintf("%s, %d CPUs, %s/%s", cpuModel(), runtime.NumCPU(), runtime.GOOS, runtime.GOARCH)},
		{"kernel", strings.TrimSpace(firstLine("/proc/sys/kernel/osrelease"))},
		{"load at the end", strings.TrimSpace(firstLine("/proc/loadavg"))},
		{"Go", runtime.Version()},
		{"relay", strings.Join(strings.Fields(output(ctx, b.relay, "version")), " ")},
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, d := range info.Deps {
			switch d.Path {
			case "github.com/nats-io/nats-server/v2", "github.com/nats-io/nats.go", "github.com/ThreeDotsLabs/watermill",
				"github.com/ThreeDotsLabs/watermill-nats/v2":
				f = append(f, [2]string{d.Path, d.Version})
			}
		}
	}
	return f
}

func output(ctx context.Context, name string, args ...string) string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, name, args...).Output()
	if err != nil {
		return err.Error()
	}
	return string(out)
}

func firstLine(file string) string {
	text, _ := os.ReadFile(file)
	line, _, _ := strings.Cut(string(text), "\n")
	return line
}

func cpuModel() string {
	text, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "model name"); ok {
			return strings.TrimSpace(strings.TrimLeft(rest, "\t :"))
		}
	}
	return "unknown CPU"
}

// text is the report for a terminal, or as Markdown.
func (r *report) text(markdown bool) string {
	var b strings.Builder
	if markdown {
		b.WriteString("# What `make bench` measured\n\n")
		b.WriteString("Medians of the rounds; a ratio is the median of the ratios to the first contestant in the same round. How to read\n")
		b.WriteString("this is in [docs/performance.md](../docs/performance.md).\n\n")
		for _, f := range r.facts {
			fmt.Fprintf(&b, "- %s: %s\n", f[0], f[1])
		}
	} else {
		b.WriteString("\n")
		for _, f := range r.facts {
			fmt.Fprintf(&b, "%-15s %s\n", f[0], f[1])
		}
	}
	for _, t := range r.tables {
		if markdown {
			fmt.Fprintf(&b, "\n## %s\n\n%s\n\n", t.name, t.title)
		} else {
			fmt.Fprintf(&b, "\n%s: %s\n", t.name, t.title)
		}
		t.write(&b, markdown)
		if markdown && len(t.targets) > 0 {
			b.WriteString("\n")
		}
		for _, tg := range t.targets {
			if markdown {
				b.WriteString("- ")
			} else {
				b.WriteString("  target: ")
			}
			b.WriteString(tg + "\n")
		}
	}
	if len(r.notes) > 0 {
		b.WriteString("\n")
		if markdown {
			b.WriteString("## Notes\n\n")
		}
		for _, n := range r.notes {
			b.WriteString("- " + strings.ReplaceAll(n, "\n", " ") + "\n")
		}
	}
	return b.String()
}

func (t *table) write(b *strings.Builder, markdown bool) {
	width := make([]int, len(t.head))
	rows := append([][]string{t.head}, t.rows...)
	for _, row := range rows {
		for i, cell := range row {
			width[i] = max(width[i], len([]rune(cell)))
		}
	}
	line := func(row []string) {
		for i := range t.head {
			cell := ""
			if i < len(row) {
				cell = row[i]
			}
			pad := strings.Repeat(" ", width[i]-len([]rune(cell)))
			if i == 0 {
				cell += pad
			} else {
				cell = pad + cell
			}
			if markdown {
				b.WriteString("| " + cell + " ")
			} else {
				b.WriteString("  " + cell)
			}
		}
		if markdown {
			b.WriteString("|")
		}
		b.WriteString("\n")
	}
	line(t.head)
	if markdown {
		for i := range t.head {
			if i == 0 {
				b.WriteString("| --- ")
			} else {
				b.WriteString("| ---: ")
			}
		}
		b.WriteString("|\n")
	}
	for _, row := range t.rows {
		line(row)
	}
}
