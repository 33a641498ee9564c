package cli

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"strings"
	"unicode/utf8"

	"github.com/relaymq/relay/internal/plain"
)

// BodyText is a body for a person: JSON indented, text as it is, anything else as a hex dump.
func BodyText(data []byte) string {
	var pretty bytes.Buffer
	switch {
	case len(data) == 0:
		return "(empty)"
	case json.Valid(data) && indented(data) <= maxIndented(len(data)) && json.Indent(&pretty, data, "", "  ") == nil:
		return plain.Lines(pretty.String())
	case utf8.Valid(data) && !strings.ContainsFunc(string(data), func(r rune) bool { return r < ' ' && r != '\n' && r != '\t' && r != '\r' }):
		return plain.Lines(string(data))
	}
	return strings.TrimRight(hex.Dump(data), "\n")
}

// maxIndented is how long JSON may be when it is indented; beyond, it is shown as it is. Deep nesting, at two more spaces for
// each level, makes 200 MB of 48 KB.
func maxIndented(size int) int { return 8*size + 4<<10 }

// indented is about how many bytes json.Indent makes of JSON that is valid.
func indented(data []byte) int {
	size, depth, quoted := len(data), 0, false
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			depth++
			size += 1 + 2*depth
		case c == '}' || c == ']':
			depth--
			size += 1 + 2*depth
		case c == ',':
			size += 1 + 2*depth
		}
	}
	return size
}
