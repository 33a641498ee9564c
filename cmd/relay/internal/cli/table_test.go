package cli

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rivo/uniseg"
)

// terminalOf is a screen of a given width.
type terminalOf struct {
	bytes.Buffer
	columns int
}

func (t *terminalOf) width() int { return t.columns }

var someRows = [][]string{
	{"NUMBER", "STORED", "ROUTE", "ERROR"},
	{"1", "2026-01-31 12:00:00", "shipping", "exit status 1: order 4115 has no address, and nobody knows where to send it"},
	{"10", "2026-01-31 12:00:00", "a", "short"},
}

// Listings wrapped at 80 columns, and errors were cut at 80 characters however wide the terminal was.
func TestTable_fitsTheTerminal(t *testing.T) {
	for columns, want := range map[int]string{
		0: `NUMBER  STORED               ROUTE     ERROR
1       2026-01-31 12:00:00  shipping  exit status 1: order 4115 has no address, and nobody knows where to send it
10      2026-01-31 12:00:00  a         short
`,
		80: `NUMBER  STORED               ROUTE     ERROR
1       2026-01-31 12:00:00  shipping  exit status 1: order 4115 has no address…
10      2026-01-31 12:00:00  a         short
`,
		50: `NUMBER  STORED               ROUTE
    ERROR
1       2026-01-31 12:00:00  shipping
    exit status 1: order 4115 has no address, and…
10      2026-01-31 12:00:00  a
    short
`,
	} {
		out := &terminalOf{columns: columns}
		Table(out, someRows)
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Errorf("%d columns (-want +got):\n%s", columns, diff)
		}
		for line := range strings.Lines(out.String()) {
			if n := uniseg.StringWidth(strings.TrimSuffix(line, "\n")); columns > 0 && n > columns {
				t.Errorf("%d columns: a line of %d: %q", columns, n, line)
			}
		}
	}
}

// Letters of two columns, and marks of none, keep the columns straight.
func TestTable_wideLetters(t *testing.T) {
	out := &terminalOf{columns: 40}
	Table(out, [][]string{{"KEY", "WHY"}, {"注文.東京", "e\u0301 " + strings.Repeat("京", 30)}, {"b", "x"}})
	want := "KEY        WHY\n注文.東京  e\u0301 " + strings.Repeat("京", 13) + "…\nb          x\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
}

func TestTable_boundsACellInAPipe(t *testing.T) {
	var out bytes.Buffer
	Table(&out, [][]string{{"ERROR"}, {strings.Repeat("x", 100_000)}})
	if out.Len() > 2*mostCell {
		t.Errorf("%d bytes", out.Len())
	}
}

// A file or a pipe is no terminal: scripts get everything.
func TestScreen_pipeHasNoWidth(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if n := widthOf(&Screen{File: w}); n != 0 {
		t.Errorf("width %d", n)
	}
}
