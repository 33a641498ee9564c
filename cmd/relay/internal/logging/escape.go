package logging

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/relaymq/relay/internal/plain"
)

// printable escapes what the JSON handler leaves in strings: DEL, C1, marks of direction. The values stay the same.
type printable struct{ io.Writer }

// Write takes one record with its line break.
func (p printable) Write(record []byte) (int, error) {
	line := string(bytes.TrimSuffix(record, []byte("\n")))
	if shown := plain.Text(line); shown != line {
		_, err := p.Writer.Write([]byte(shown + "\n"))
		return len(record), err
	}
	return p.Writer.Write(record)
}

// escaper makes everything that is logged printable before it reaches tint, which writes messages as they are and lets
// terminal sequences through on purpose.
type escaper struct{ slog.Handler }

func (e escaper) Handle(ctx context.Context, r slog.Record) error {
	return e.Handler.Handle(ctx, mapRecord(r, escape, escapeAttr))
}

func (e escaper) WithAttrs(attrs []slog.Attr) slog.Handler {
	return escaper{e.Handler.WithAttrs(mapAttrs(attrs, escapeAttr))}
}

func (e escaper) WithGroup(name string) slog.Handler {
	return escaper{e.Handler.WithGroup(escape(name))}
}

func mapRecord(r slog.Record, message func(string) string, attr func(slog.Attr) slog.Attr) slog.Record {
	out := slog.NewRecord(r.Time, r.Level, message(r.Message), r.PC)
	r.Attrs(func(a slog.Attr) bool {
		out.AddAttrs(attr(a))
		return true
	})
	return out
}

func mapAttrs(attrs []slog.Attr, attr func(slog.Attr) slog.Attr) []slog.Attr {
	out := make([]slog.Attr, len(attrs))
	for i, a := range attrs {
		out[i] = attr(a)
	}
	return out
}

func escapeAttr(a slog.Attr) slog.Attr {
	v := a.Value.Resolve()
	switch v.Kind() {
	case slog.KindString:
		v = slog.StringValue(escape(v.String()))
	case slog.KindGroup:
		v = slog.GroupValue(mapAttrs(v.Group(), escapeAttr)...)
	case slog.KindAny:
		// fmt and not the value's own method: it survives an error that is a nil pointer.
		v = slog.StringValue(escape(fmt.Sprintf("%+v", v.Any())))
	}
	return slog.Attr{Key: escape(a.Key), Value: v}
}

// escape also escapes a backslash in front of x: tint turns those four characters, \x1b, into the escape byte when it
// writes colours (v1.2.1, appendString).
func escape(s string) string {
	return strings.ReplaceAll(plain.Text(s), `\x`, `\u005cx`)
}
