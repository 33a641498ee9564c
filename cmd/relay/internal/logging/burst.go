package logging

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"
)

const (
	// period is how long lines of one kind are counted together.
	period = 10 * time.Second
	// maxKinds bounds the memory; what is above it counts as one kind.
	maxKinds = 4096
)

// burst writes so many lines of a kind in a period, and counts the others. It is for storms: a dependency that is down
// fails every message, and the thousandth line says nothing that the twentieth did not.
type burst struct {
	slog.Handler
	storm         *storm
	route, reason string // from WithAttrs
}

func newBurst(h slog.Handler, limit int) burst {
	return burst{Handler: h, storm: &storm{out: h, limit: limit}}
}

// kind is what lines have in common that are counted together.
type kind struct {
	message, route, reason string
	level                  slog.Level
}

// storm counts, for all loggers made of one.
type storm struct {
	out   slog.Handler // without the attributes of any logger
	limit int

	mu    sync.Mutex
	seen  map[kind]int // nil when no period runs
	timer *time.Timer
}

func (b burst) Handle(ctx context.Context, r slog.Record) error {
	k := kind{r.Message, b.route, b.reason, r.Level}
	r.Attrs(func(a slog.Attr) bool {
		k.note(a)
		return true
	})
	if r.Level < slog.LevelInfo || b.storm.take(k) {
		return b.Handler.Handle(ctx, r)
	}
	return nil
}

func (k *kind) note(a slog.Attr) {
	switch a.Key {
	case "route":
		k.route = a.Value.String()
	case "reason":
		k.reason = cut(a.Value.String(), maxName)
	}
}

func (b burst) WithAttrs(attrs []slog.Attr) slog.Handler {
	k := kind{route: b.route, reason: b.reason}
	for _, a := range attrs {
		k.note(a)
	}
	return burst{b.Handler.WithAttrs(attrs), b.storm, k.route, k.reason}
}

func (b burst) WithGroup(name string) slog.Handler {
	return burst{b.Handler.WithGroup(name), b.storm, b.route, b.reason}
}

// take tells whether a line of the kind is to be written. The first line begins a period.
func (s *storm) take(k kind) bool {
	if s.limit == 0 {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seen == nil {
		s.seen = make(map[kind]int)
		s.timer = time.AfterFunc(period, s.flush)
	}
	if _, known := s.seen[k]; !known && len(s.seen) >= maxKinds {
		k = kind{message: "any other", level: slog.LevelWarn}
	}
	s.seen[k]++
	return s.seen[k] <= s.limit
}

// flush ends the period: one line for each kind of which lines were left out.
func (s *storm) flush() {
	s.mu.Lock()
	seen := s.seen
	s.seen = nil
	if s.timer != nil {
		s.timer.Stop()
	}
	s.mu.Unlock()
	var kinds []kind
	for k, n := range seen {
		if n > s.limit {
			kinds = append(kinds, k)
		}
	}
	slices.SortFunc(kinds, func(a, b kind) int {
		return cmp.Or(cmp.Compare(a.message, b.message), cmp.Compare(a.route, b.route), cmp.Compare(a.reason, b.reason), cmp.Compare(a.level, b.level))
	})
	for _, k := range kinds {
		r := slog.NewRecord(time.Now(), k.level, "lines were left out", 0)
		r.AddAttrs(slog.String("message", k.message))
		if k.route != "" {
			r.AddAttrs(slog.String("route", k.route))
		}
		if k.reason != "" {
			r.AddAttrs(slog.String("reason", k.reason))
		}
		r.AddAttrs(slog.Int("count", seen[k]-s.limit), slog.Duration("within", period))
		_ = s.out.Handle(context.Background(), r)
	}
}
