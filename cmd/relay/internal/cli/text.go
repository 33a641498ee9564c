package cli

import "github.com/relaymq/relay/internal/plain"

// Or is a, or b when a is empty.
func Or(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// Plural is a noun for a number of things.
func Plural[N int | uint64](n N, noun string) string {
	if n == 1 {
		return noun
	}
	return noun + "s"
}

// Printable shows what comes from strangers on one line, without letting it act on the terminal.
func Printable(s string) string { return plain.Text(s) }
