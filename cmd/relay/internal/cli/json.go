package cli

import (
	"io"

	"github.com/relaymq/relay/internal/plain"
)

// PrintJSON prints a value over several lines.
func PrintJSON(w io.Writer, v any) error { return plain.JSON(w, v, "  ") }

// PrintLine prints a value on one line.
func PrintLine(w io.Writer, v any) error { return plain.JSON(w, v, "") }
