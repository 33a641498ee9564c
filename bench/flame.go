package main

import (
	"cmp"
	"encoding/xml"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/google/pprof/profile"
)

// frame is a function in a flame graph, with those it called.
type frame struct {
	name   string
	value  int64
	called []*frame
}

func (f *frame) child(name string) *frame {
	for _, c := range f.called {
		if c.name == name {
			return c
		}
	}
	c := &frame{name: name}
	f.called = append(f.called, c)
	return c
}

func (f *frame) depth() int {
	d := 0
	for _, c := range f.called {
		d = max(d, c.depth())
	}
	return d + 1
}

const (
	flameWidth = 1200
	rowHeight  = 16
	leastWidth = 1.0 // narrower frames are left out
)

// drawFlame draws a profile as SVG: callers above what they called, width by CPU time.
func drawFlame(w io.Writer, file string) error {
	in, err := os.Open(file)
	if err != nil {
		return err
	}
	defer in.Close()
	p, err := profile.Parse(in)
	if err != nil {
		return err
	}
	root := &frame{name: "all"}
	value := len(p.SampleType) - 1
	for _, s := range p.Sample {
		at := root
		at.value += s.Value[value]
		for _, loc := range slices.Backward(s.Location) {
			for _, line := range slices.Backward(loc.Line) {
				at = at.child(line.Function.Name)
				at.value += s.Value[value]
			}
		}
	}
	if root.value == 0 {
		return fmt.Errorf("%s holds no samples", file)
	}
	height := (root.depth() + 1) * rowHeight
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="monospace" font-size="11">`+"\n",
		flameWidth, height, flameWidth, height)
	b.WriteString(`<rect width="100%" height="100%" fill="#fff"/>` + "\n")
	root.draw(&b, 0, flameWidth, 0, root.value)
	b.WriteString("</svg>\n")
	_, err = io.WriteString(w, b.String())
	return err
}

func (f *frame) draw(b *strings.Builder, x, width float64, row int, all int64) {
	if width < leastWidth {
		return
	}
	fmt.Fprintf(b, `<g><title>%s %.1f%%</title><rect x="%.1f" y="%d" width="%.1f" height="%d" fill="%s" stroke="#fff" stroke-width="0.5"/>`,
		escape(f.name), 100*float64(f.value)/float64(all), x, row*rowHeight, width, rowHeight, colour(f.name))
	if room := int(width/6.7) - 1; room > 3 {
		name := short(f.name)
		if len(name) > room {
			name = name[:room-1] + "…"
		}
		fmt.Fprintf(b, `<text x="%.1f" y="%d">%s</text>`, x+2, row*rowHeight+12, escape(name))
	}
	b.WriteString("</g>\n")
	slices.SortFunc(f.called, func(a, c *frame) int { return cmp.Compare(a.name, c.name) })
	for _, c := range f.called {
		w := width * float64(c.value) / float64(f.value)
		c.draw(b, x, w, row+1, all)
		x += w
	}
}

// short leaves out where the package is from.
func short(name string) string { return name[strings.LastIndexByte(name, '/')+1:] }

func escape(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s))
	return b.String()
}

// colour tells relay's own functions from those of nats.go and of the runtime.
func colour(name string) string {
	h := fnv.New32a()
	h.Write([]byte(name))
	shade := int(h.Sum32() % 30)
	switch {
	case strings.HasPrefix(name, "github.com/relaymq/relay"):
		return fmt.Sprintf("rgb(%d,%d,%d)", 255-shade/2, 150-shade, 60)
	case strings.HasPrefix(name, "github.com/nats-io/"):
		return fmt.Sprintf("rgb(%d,%d,%d)", 110-shade, 180-shade/2, 235)
	}
	return fmt.Sprintf("rgb(%d,%d,%d)", 215-shade, 215-shade, 215-shade)
}
