package main

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"io"
	"strings"
	"unicode/utf8"
)

// bodyText is a body for a person: JSON indented, text as it is, anything else as a hex dump.
func bodyText(data []byte) string {
	var pretty bytes.Buffer
	switch {
	case len(data) == 0:
		return "(empty)"
	case json.Valid(data) && json.Indent(&pretty, data, "", "  ") == nil:
		return printableLines(pretty.String())
	case utf8.Valid(data) && !strings.ContainsFunc(string(data), func(r rune) bool { return r < ' ' && r != '\n' && r != '\t' && r != '\r' }):
		return printableLines(string(data))
	}
	return strings.TrimRight(hex.Dump(data), "\n")
}

func printableLines(s string) string {
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		lines[i] = printable(strings.ReplaceAll(line, "\t", "    "))
	}
	return strings.Join(lines, "\n")
}

func printLine(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}
