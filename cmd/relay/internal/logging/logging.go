package logging

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/lmittmann/tint"
	"golang.org/x/term"
)

// New makes a logger that writes to w, which is a [Writer] if the log must not block.
//
// level is debug, info, warn or error. format is json, text, or auto: text if w is a terminal, else JSON. Text has
// colours on a terminal, unless NO_COLOR is set (no-color.org).
func New(w io.Writer, level, format string) (*slog.Logger, error) {
	var min slog.Level
	switch level {
	case "debug":
		min = slog.LevelDebug
	case "info":
		min = slog.LevelInfo
	case "warn":
		min = slog.LevelWarn
	case "error":
		min = slog.LevelError
	default:
		return nil, fmt.Errorf("log.level: must be debug, info, warn or error (got %q)", level)
	}
	tty := terminal(w)
	switch format {
	case "json":
		return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: min, ReplaceAttr: plainDurations})), nil
	case "text":
	case "auto":
		if !tty {
			return New(w, level, "json")
		}
	default:
		return nil, fmt.Errorf("log.format: must be auto, text or json (got %q)", format)
	}
	return slog.New(escaper{tint.NewTextHandler(w, &tint.Options{
		Level:      min,
		TimeFormat: time.TimeOnly,
		NoColor:    !tty || os.Getenv("NO_COLOR") != "",
	})}), nil
}

// plainDurations writes a duration as 1.5s, as everywhere else in relay, and not as a number without a unit.
func plainDurations(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.StringValue(a.Value.Duration().String())
	}
	return a
}

// terminal looks through a Writer.
func terminal(w io.Writer) bool {
	if q, ok := w.(*Writer); ok {
		w = q.w
	}
	f, ok := w.(interface{ Fd() uintptr })
	return ok && term.IsTerminal(int(f.Fd()))
}
