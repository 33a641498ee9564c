package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/relaymq/relay/internal/plain"
)

func printJSON(w io.Writer, v any) error { return plain.JSON(w, v, "  ") }

func printLine(w io.Writer, v any) error { return plain.JSON(w, v, "") }

// printable shows what comes from strangers on one line, without letting it act on the terminal.
func printable(s string) string { return plain.Text(s) }

// table prints rows in columns, the last of which may be long. It escapes every cell, so that no caller can forget one.
func table(w io.Writer, rows [][]string) {
	var widths []int
	for _, row := range rows {
		for i := range row {
			row[i] = printable(row[i])
		}
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
