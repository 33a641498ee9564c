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

// Config says what is logged, and how.
type Config struct {
	// Level is debug, info, warn or error.
	Level string
	// Dynamic, when it is not nil, is set to Level, and may be changed later.
	Dynamic *slog.LevelVar
	// Format is json, text, or auto: text if the writer is a terminal, else JSON. Text has colours on a terminal, unless
	// NO_COLOR is set (no-color.org).
	Format string
	// Burst is how often the same message of the same route and reason is written within ten seconds. What is above it is
	// counted, and the count is one line when they are over. 0 is any number. Debug lines are not counted: whoever asks
	// for them wants them all.
	Burst int
}

// New makes a logger that writes to w, which is a [Writer] if the log must not block. The returned flush writes the
// counts of what was left out so far; it is called once, at the end.
func New(w io.Writer, cfg Config) (log *slog.Logger, flush func(), err error) {
	level, err := Level(cfg.Level)
	if err != nil {
		return nil, nil, err
	}
	min := cfg.Dynamic
	if min == nil {
		min = new(slog.LevelVar)
	}
	min.Set(level)
	var h slog.Handler
	switch cfg.Format {
	case "json", "auto", "text":
		if JSON(w, cfg.Format) {
			h = slog.NewJSONHandler(printable{w}, &slog.HandlerOptions{Level: min, ReplaceAttr: plainDurations})
			break
		}
		h = escaper{tint.NewTextHandler(w, &tint.Options{
			Level:      min,
			TimeFormat: time.TimeOnly,
			NoColor:    !terminal(w) || os.Getenv("NO_COLOR") != "",
		})}
	default:
		return nil, nil, fmt.Errorf("log.format: must be auto, text or json (got %q)", cfg.Format)
	}
	b := newBurst(bounded{h}, cfg.Burst)
	return slog.New(b), b.storm.flush, nil
}

// Level reads debug, info, warn or error.
func Level(name string) (slog.Level, error) {
	switch name {
	case "debug":
		return slog.LevelDebug, nil
	case "info":
		return slog.LevelInfo, nil
	case "warn":
		return slog.LevelWarn, nil
	case "error":
		return slog.LevelError, nil
	}
	return 0, fmt.Errorf("log.level: must be debug, info, warn or error (got %q)", name)
}

// JSON tells whether a log of that format on w is JSON.
func JSON(w io.Writer, format string) bool {
	return format == "json" || format == "auto" && !terminal(w)
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
