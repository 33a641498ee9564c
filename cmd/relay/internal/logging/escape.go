package logging

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"github.com/relaymq/relay/internal/plain"
)

// escaper makes everything that is logged printable before it reaches tint, which writes messages as they are and lets
// terminal sequences through on purpose. The JSON handler needs no such help.
type escaper struct{ slog.Handler }

func (e escaper) Handle(ctx context.Context, r slog.Record) error {
	out := slog.NewRecord(r.Time, r.Level, escape(r.Message), r.PC)
	r.Attrs(func(a slog.Attr) bool {
		out.AddAttrs(escapeAttr(a))
		return true
	})
	return e.Handler.Handle(ctx, out)
}

func (e escaper) WithAttrs(attrs []slog.Attr) slog.Handler {
	return escaper{e.Handler.WithAttrs(escapeAttrs(attrs))}
}

func (e escaper) WithGroup(name string) slog.Handler {
	return escaper{e.Handler.WithGroup(escape(name))}
}

func escapeAttrs(attrs []slog.Attr) []slog.Attr {
	out := make([]slog.Attr, len(attrs))
	for i, a := range attrs {
		out[i] = escapeAttr(a)
	}
	return out
}

func escapeAttr(a slog.Attr) slog.Attr {
	v := a.Value.Resolve()
	switch v.Kind() {
	case slog.KindString:
		v = slog.StringValue(escape(v.String()))
	case slog.KindGroup:
		v = slog.GroupValue(escapeAttrs(v.Group())...)
	case slog.KindAny:
		// fmt and not the value's own method: it survives an error that is a nil pointer.
		v = slog.StringValue(escape(fmt.Sprintf("%+v", v.Any())))
	}
	return slog.Attr{Key: escape(a.Key), Value: v}
}

// escape is plain.Text for tint, which turns the four characters \x1b back into the escape byte when it writes colours
// (v1.2.1, appendString): a backslash in front of x is escaped itself. plain.Text never writes one.
func escape(s string) string {
	return strings.ReplaceAll(plain.Text(s), `\x`, `\u005cx`)
}
