package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// printable shows bytes from strangers without letting them act on the terminal.
func printable(s string) string {
	clean := func(r rune) bool {
		return r >= ' ' && r != 0x7f && (r < 0x80 || r > 0x9f) && r != utf8.RuneError && !bidi(r)
	}
	if strings.IndexFunc(s, func(r rune) bool { return !clean(r) }) < 0 {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		switch {
		case clean(r):
			b.WriteRune(r)
		default:
			q := fmt.Sprintf("%+q", r)
			b.WriteString(q[1 : len(q)-1])
		}
	}
	return b.String()
}

// bidi are the marks that turn the direction of text.
func bidi(r rune) bool {
	return r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 || r == 0x200e || r == 0x200f
}

// table prints rows in columns, the last of which may be long.
func table(w io.Writer, rows [][]string) {
	var widths []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			if i < len(row)-1 {
				widths[i] = max(widths[i], utf8.RuneCountInString(cell))
			}
		}
	}
	for _, row := range rows {
		var b strings.Builder
		for i, cell := range row {
			if i > 0 {
				b.WriteString("  ")
			}
			b.WriteString(cell)
			if i < len(row)-1 {
				b.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)))
			}
		}
		fmt.Fprintln(w, strings.TrimRight(b.String(), " "))
	}
}

func shorten(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:n-1]) + "…"
}

func when(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.Local().Format("2006-01-02 15:04:05")
}

// confirm asks before something large or destructive. Without a terminal --yes is required. The end of ctx is a no.
func confirm(ctx context.Context, c *cobra.Command, yes bool, question string) error {
	if yes {
		return nil
	}
	in, ok := c.InOrStdin().(*os.File)
	if !ok || !term.IsTerminal(int(in.Fd())) {
		return fmt.Errorf("%w: %s: there is no terminal to ask on, so --yes is required", errUsage, question)
	}
	fmt.Fprintf(c.OutOrStderr(), "%s [y/N] ", question)
	answer := make(chan string, 1)
	go func() { // a read from a terminal does not end with ctx; this goroutine ends with the program
		var a string
		_, _ = fmt.Fscanln(in, &a)
		answer <- strings.ToLower(a)
	}()
	select {
	case a := <-answer:
		if a == "y" || a == "yes" {
			return nil
		}
	case <-ctx.Done():
		fmt.Fprintln(c.OutOrStderr())
	}
	return errors.New("not done")
}
