package consumer

import (
	"time"

	"github.com/relaymq/relay/event"
)

// ConfigStatus says which configuration an instance runs. Whoever embeds a [Relay] may say it with [Relay.TellConfig].
type ConfigStatus struct {
	// Generation counts the configurations since the start, from 1.
	Generation int `json:"generation"`
	// Hash tells configurations apart: instances of a service should have the same one.
	Hash   string    `json:"hash,omitempty"`
	Loaded time.Time `json:"loaded"`
	// NeedsRestart are keys that changed and count only once the process is started again.
	NeedsRestart []string `json:"needs_restart,omitempty"`
	// Failed is why the last reload changed nothing, and when; empty when it did what it was to do.
	Failed   string    `json:"failed,omitempty"`
	FailedAt time.Time `json:"failed_at,omitzero"`
	// Routes are digests of the settings of each route, which the status has in [RouteStatus], and Rest is of all other keys, for whoever
	// compares a file with what runs.
	Routes map[string]ConfigDigest `json:"-"`
	Rest   ConfigDigest            `json:"rest,omitzero"`
}

// ConfigDigest tells settings apart, without saying them. A secret that stands in the file itself is no part
// of it; what other files hold is.
type ConfigDigest struct {
	// Live is of the settings that change while the route, or the process, goes on, and Anew of those for which it begins anew.
	Live string `json:"live"`
	Anew string `json:"anew"`
	// Own is of the settings that each instance has for itself, such as where it listens. Empty: there are none.
	Own string `json:"own,omitempty"`
}

// TellConfig has the status say which configuration this is.
func (r *Relay) TellConfig(c ConfigStatus) { r.config.Store(&c) }

// Report publishes an event of the program around the Relay, as the Relay does its own.
func (r *Relay) Report(kind event.Kind, d event.Data) { r.events.Report(kind, d) }

// SetDrain changes [Config.Drain] of a Relay that may be running; zero means 30s.
func (r *Relay) SetDrain(d time.Duration) {
	r.drainFor.Store(int64(Config{Drain: d}.withDefaults().Drain))
}

func (r *Relay) drainTime() time.Duration { return time.Duration(r.drainFor.Load()) }
