package logging

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
)

const (
	maxText = 1 << 10 // bytes of a message, an error, any text
	maxName = 256     // bytes of a subject or a key, which a publisher chooses
)

// bounded cuts long texts: a publisher chooses subjects and keys, a handler its errors, and a line of the log must not be
// as long as they like.
type bounded struct{ slog.Handler }

func (b bounded) Handle(ctx context.Context, r slog.Record) error {
	return b.Handler.Handle(ctx, mapRecord(r, func(s string) string { return cut(s, maxText) }, cutAttr))
}

func (b bounded) WithAttrs(attrs []slog.Attr) slog.Handler {
	return bounded{b.Handler.WithAttrs(mapAttrs(attrs, cutAttr))}
}

func (b bounded) WithGroup(name string) slog.Handler { return bounded{b.Handler.WithGroup(name)} }

func cutAttr(a slog.Attr) slog.Attr {
	limit := maxText
	if a.Key == "subject" || a.Key == "key" {
		limit = maxName
	}
	v := a.Value.Resolve()
	switch v.Kind() {
	case slog.KindString:
		v = slog.StringValue(cut(v.String(), limit))
	case slog.KindGroup:
		v = slog.GroupValue(mapAttrs(v.Group(), cutAttr)...)
	case slog.KindAny:
		// A handler's error may be a nil pointer, or panic: fmt survives both. Other values stay what they are when short.
		_, isError := v.Any().(error)
		if s := fmt.Sprintf("%+v", v.Any()); isError || len(s) > limit {
			v = slog.StringValue(cut(s, limit))
		}
	}
	return slog.Attr{Key: cut(a.Key, maxName), Value: v}
}

// cut leaves the beginning of s and says how long it was.
func cut(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	return fmt.Sprintf("%s… (%d bytes)", strings.ToValidUTF8(s[:limit], ""), len(s))
}
