package natsd

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
)

// bridge brings the server's log to slog. A notice of the server is detail to relay: debug. During the start a warning
// is about something in the store that could not be read, which nobody may overlook: error.
type bridge struct {
	log *slog.Logger

	mu       sync.Mutex
	starting bool
	warnings []string // while starting
	died     string
}

// fatal is the first thing the server would have ended its process for, had it one of its own.
func (b *bridge) fatal() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.died
}

// started ends the start and returns the warnings it gave.
func (b *bridge) started() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.starting = false
	return b.warnings
}

func (b *bridge) write(level slog.Level, format string, v []any) {
	if b.log.Enabled(context.Background(), level) {
		b.log.Log(context.Background(), level, "nats-server: "+text(format, v))
	}
}

func text(format string, v []any) string { return strings.TrimSpace(fmt.Sprintf(format, v...)) }

func (b *bridge) Noticef(format string, v ...any) { b.write(slog.LevelDebug, format, v) }

func (b *bridge) Warnf(format string, v ...any) {
	// Whoever sent the request was told, and relay sends some that cannot be valid: to see whether they are permitted.
	if strings.Contains(text(format, v), "Invalid JetStream request ") {
		b.write(slog.LevelDebug, format, v)
		return
	}
	level := slog.LevelWarn
	b.mu.Lock()
	if b.starting {
		level = slog.LevelError
		b.warnings = append(b.warnings, text(format, v))
	}
	b.mu.Unlock()
	b.write(level, format, v)
}

func (b *bridge) Errorf(format string, v ...any) { b.write(slog.LevelError, format, v) }

func (b *bridge) Fatalf(format string, v ...any) {
	b.mu.Lock()
	if b.died == "" {
		b.died = text(format, v)
	}
	b.mu.Unlock()
	b.write(slog.LevelError, format, v)
}

// Debugf and Tracef are never called: the server is told so.
func (*bridge) Debugf(string, ...any) {}
func (*bridge) Tracef(string, ...any) {}
