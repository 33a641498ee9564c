package engine

import (
	"time"

	"github.com/relaymq/relay/event"
	"github.com/relaymq/relay/internal/control"
)

// TellConfig makes the status say which configuration this is.
func (r *Engine) TellConfig(c control.ConfigStatus) { r.Told.Store(&c) }

// Report publishes an event of the program around the engine.
func (r *Engine) Report(kind event.Kind, d event.Data) { r.Reports.Report(kind, d) }

// Events returns the events that this instance publishes.
func (r *Engine) Events() <-chan event.Event { return r.Reports.Events() }

// SetDrain changes how long a drain may take.
func (r *Engine) SetDrain(d time.Duration) { r.Phases.SetDrain(d) }
