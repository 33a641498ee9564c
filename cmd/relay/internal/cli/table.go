package cli

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"github.com/rivo/uniseg"
	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// Screen is standard output. What is printed there as a table fits a terminal's width; in a file or a pipe, and with
// --wide, everything is whole.
type Screen struct {
	*os.File
	wide bool

	mu     sync.Mutex
	failed error
}

// Write keeps the first error, because not every command looks at that of each line.
func (s *Screen) Write(p []byte) (int, error) {
	n, err := s.File.Write(p)
	if err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.failed = cmp.Or(s.failed, err)
	}
	return n, err
}

// WriteString is Write.
func (s *Screen) WriteString(p string) (int, error) { return s.Write([]byte(p)) }

// Unwritten is why something that a command printed is not in its standard output.
func Unwritten(root *cobra.Command) error {
	s, ok := root.OutOrStdout().(*Screen)
	if !ok {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

// StandardOutput has commands print to it, and gives them --wide.
func StandardOutput(root *cobra.Command) {
	out := &Screen{File: os.Stdout}
	root.SetOut(out)
	root.PersistentFlags().BoolVar(&out.wide, "wide", false, "print tables whole, wider than the terminal (always so in a file or a pipe)")
}

// unknownWidth is that of a terminal which does not say.
const unknownWidth = 80

// width is the number of columns to keep to; 0 for any number.
func (s *Screen) width() int {
	fd := int(s.Fd())
	if s.wide || !term.IsTerminal(fd) {
		return 0
	}
	if w, _, err := term.GetSize(fd); err == nil && w > 0 {
		return w
	}
	return unknownWidth
}

func widthOf(w io.Writer) int {
	if s, ok := w.(interface{ width() int }); ok {
		return s.width()
	}
	return 0
}

const (
	gap = "  "
	// leastCut is the width below which a column is not cut: times and job ids stay whole.
	leastCut = 20
	// mostCell is the length of a cell in a file or a pipe, where nothing else bounds an error text.
	mostCell = 1024
)

// Table prints rows in columns, the first row being the head. It escapes every cell, so that no caller can forget one. Where w is a screen the
// widest columns are cut until the rows fit; when that leaves too little of the last column, which holds the errors and
// reasons, it gets lines of its own.
func Table(w io.Writer, rows [][]string) {
	escapeCells(rows)
	widths := naturalWidths(rows)
	if len(widths) == 0 {
		return
	}
	most := widthOf(w)
	below := false
	last := len(widths) - 1
	if most > 0 && !cutTo(widths, most) {
		below = true
		widths = naturalWidths(rows)
		cutTo(widths[:last], most)
	}
	for _, row := range rows {
		line := row
		if below {
			line = row[:min(len(row), last)]
		}
		printRow(w, line, widths)
		if below && len(row) > last && row[last] != "" {
			fmt.Fprintln(w, strings.TrimRight("    "+Shorten(row[last], max(most-4, leastCut)), " "))
		}
	}
}

// Fields prints names and values, one pair a row, escaped like those of a table. Values are whole, whatever the width: they are what was asked for.
func Fields(w io.Writer, rows [][]string) {
	escapeCells(rows)
	widths := make([]int, 2)
	for _, row := range rows {
		widths[0] = max(widths[0], uniseg.StringWidth(row[0]))
		widths[1] = max(widths[1], uniseg.StringWidth(row[1]))
	}
	for _, row := range rows {
		printRow(w, row, widths)
	}
}

func escapeCells(rows [][]string) {
	for _, row := range rows {
		for i := range row {
			row[i] = Printable(row[i])
		}
	}
}

// naturalWidths are those of the widest cells.
func naturalWidths(rows [][]string) (widths []int) {
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], min(uniseg.StringWidth(cell), mostCell))
		}
	}
	return widths
}

// cutTo takes from the widest column, the last one of several, until all fit into most. It is false when they do not,
// and then has cut what may be cut.
func cutTo(widths []int, most int) bool {
	total := len(gap) * (len(widths) - 1)
	for _, n := range widths {
		total += n
	}
	for ; total > most; total-- {
		widest := 0
		for i, n := range widths {
			if n >= widths[widest] {
				widest = i
			}
		}
		if widths[widest] <= leastCut {
			return false
		}
		widths[widest]--
	}
	return true
}

func printRow(w io.Writer, row []string, widths []int) {
	var b strings.Builder
	for i, cell := range row {
		if i > 0 {
			b.WriteString(gap)
		}
		cell = Shorten(cell, widths[i])
		b.WriteString(cell)
		if i < len(row)-1 {
			b.WriteString(strings.Repeat(" ", widths[i]-uniseg.StringWidth(cell)))
		}
	}
	fmt.Fprintln(w, strings.TrimRight(b.String(), " "))
}

// Shorten cuts s to n columns of a terminal, the last of which then shows that it was cut.
func Shorten(s string, n int) string {
	if uniseg.StringWidth(s) <= n {
		return s
	}
	used, end := 0, 0
	g := uniseg.NewGraphemes(s)
	for g.Next() {
		if used+g.Width() > n-1 {
			break
		}
		used += g.Width()
		_, end = g.Positions()
	}
	return s[:end] + "…"
}

// PageSize is how many entries ls shows unless told otherwise.
const PageSize = 50

// FlushRows is how many rows are printed together: their columns are aligned, and memory stays bounded.
const FlushRows = 1000
