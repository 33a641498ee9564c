package worker

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/consumer/handler/internal/process"
)

// Handler gives messages to a pool of processes. It may be shared by all keys of a route and called from any number of
// goroutines.
type Handler struct{ *pool }

var (
	_ consumer.Handler = (*Handler)(nil)
	_ consumer.Checker = (*Handler)(nil)
	_ consumer.Outside = (*Handler)(nil)
	_ consumer.Stopper = (*Handler)(nil)
)

func open(cfg Config, per string, log *slog.Logger) (*shared, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Per != per {
		return nil, fmt.Errorf("per: must be %[2]s for this kind of handler (got %[1]s)", cfg.Per, per)
	}
	program, err := process.New(cfg.process())
	if err != nil {
		return nil, err
	}
	return &shared{cfg: cfg, program: program, log: log}, nil
}

// New finds the program and makes the handler for per: pool; with per: key it is an error. It starts no process: the first messages
// do. What processes write to stderr goes to log. The error joins all faults of the config, or says why the program cannot be run.
func New(cfg Config, log *slog.Logger) (*Handler, error) {
	s, err := open(cfg, PerPool, log)
	if err != nil {
		return nil, err
	}
	return &Handler{newPool(s, s.cfg.Processes)}, nil
}

// Keys makes a process for each key. Its method New is a [consumer.Factory], and Check and Outside say of that what a Handler says
// of itself:
//
//	rt.Factory, rt.Check, rt.Outside = keys.New, keys.Check, true
type Keys struct{ shared *shared }

// NewKeys is [New] for per: key.
func NewKeys(cfg Config, log *slog.Logger) (*Keys, error) {
	s, err := open(cfg, PerKey, log)
	if err != nil {
		return nil, err
	}
	return &Keys{s}, nil
}

// New makes the handler of one child of a key.
func (k *Keys) New(string) (consumer.Handler, error) { return &Handler{newPool(k.shared, 1)}, nil }

// Check looks whether the program can still be run. It does not run it.
func (k *Keys) Check(ctx context.Context) error { return k.shared.program.Check(ctx) }
