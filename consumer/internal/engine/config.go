package engine

import (
	"log/slog"
	"time"

	"github.com/relaymq/relay/consumer/internal/limits"
	"github.com/relaymq/relay/consumer/internal/route"
)

// Config is what the routes of an Engine share, with its defaults.
type Config struct {
	route.Config

	Domain string
	Limits map[string]limits.Limit
	Drain  time.Duration
	Lease  time.Duration // of what one instance at a time has
	Adopt  bool
	// Troubles is what else does not work in this process; nil: nothing does.
	Troubles func() []string
	Logger   *slog.Logger
}
