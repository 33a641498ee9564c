package consumer

import (
	"context"

	"github.com/relaymq/relay/consumer/internal/roster"
	"github.com/relaymq/relay/internal/control"
)

// ErrNotRunning says that routes cannot change now: Run has not started them yet, or is ending.
var ErrNotRunning = roster.ErrNotRunning

// Change is what changes of the routes of a running [Relay], at once. Zero changes nothing.
type Change struct {
	// Add are routes with names that do not exist yet.
	Add []Route
	// Update are routes with names that exist. A route that differs only in Concurrency, Rate, Burst, Timeout, Retry, Supervisor, Stash,
	// Batch, Use, and its handlers, which are of the same types, changes in place. Any other route ends and begins again as given here.
	Update []Route
	// Remove are names of routes that end.
	Remove []string
	// Limits are those that hold from then on; nil: as before.
	Limits map[string]Limit
	// DeliverAgain permits making a durable that, with start: all, delivers messages that were handled before, for example after a route
	// was renamed. Without it such a change is refused.
	DeliverAgain bool
}

// Changed is what became of a [Change].
type Changed struct {
	Added   []string `json:"added,omitempty"`
	Updated []string `json:"updated,omitempty"`
	// Live are those of Updated that changed in place: they did not stop, and handlers in flight go on.
	Live []string `json:"live,omitempty"`
	// Restarted routes began anew because they share a durable with one that changed.
	Restarted []string  `json:"restarted,omitempty"`
	Removed   []Removed `json:"removed,omitempty"`
	// Waiting are routes that changed and are not pulled from yet, and why. They continue by themselves.
	Waiting map[string]string `json:"waiting,omitempty"`
	// Interrupted handlers of routes that ended did not end within the drain. They spent no attempt.
	Interrupted int `json:"interrupted,omitempty"`
}

// Removed is a route that has ended, and what is left of it: nothing is removed from the server.
type Removed struct {
	Route   string `json:"route"`
	Stream  string `json:"stream,omitempty"`
	Durable string `json:"durable"`
	// Copies is the stream of its partitions, which stays, and to which the server goes on copying; empty: it had none.
	Copies string `json:"copies,omitempty"`
	// Backlog is what waited for it when it ended; nil when that is not known.
	Backlog *control.Backlog `json:"backlog,omitempty"`
	// DeadLetters of it are stored; nil when that is not known.
	DeadLetters *int `json:"dead_letters,omitempty"`
}

// Add begins a route while the others go on. See [Relay.Change].
func (r *Relay) Add(ctx context.Context, rt Route) error {
	_, err := r.Change(ctx, Change{Add: []Route{rt}})
	return err
}

// Update changes the route of that name to what is given: in place, or by ending it and beginning it again, as [Change.Update] says. In place,
// a handler that is another object is started before it is used, and the former one is stopped when its last run has ended, or was interrupted
// after [Config.Drain]. A route that ends gives back the messages that wait, and they are redelivered. Its handler may be the same object; it
// is stopped and started again where it implements that. See [Relay.Change].
func (r *Relay) Update(ctx context.Context, rt Route) (Changed, error) {
	return r.Change(ctx, Change{Update: []Route{rt}})
}

// Remove ends a route. Its durable, its parked messages and its dead letters stay, and are named. See [Relay.Change].
func (r *Relay) Remove(ctx context.Context, name string) (Removed, error) {
	done, err := r.Change(ctx, Change{Remove: []string{name}})
	if err != nil {
		return Removed{}, err
	}
	return done.Removed[0], nil
}

// Check tells what is wrong with a change, and changes nothing. It is what [Relay.Change] does first.
func (r *Relay) Check(ctx context.Context, c Change) error { return r.engine.Check(ctx, r.inside(c)) }

// Change changes routes. An error means that nothing has changed: one that is [ErrNotRunning], or *[SetupError]s joined. Until
// it is made, ctx bounds the change. Then routes that end drain as relay does at its end, at most for [Config.Drain], and
// those that begin wait for those that they replace. Change returns when that is done and the durables of the routes that began are open, or
// were tried once. It is safe for concurrent use; changes are made one after the other.
func (r *Relay) Change(ctx context.Context, c Change) (Changed, error) {
	did, err := r.engine.Change(ctx, r.inside(c))
	if err != nil {
		return Changed{}, err
	}
	done := Changed{
		Added: did.Added, Updated: did.Updated, Live: did.Live, Restarted: did.Restarted, Waiting: did.Waiting, Interrupted: did.Interrupted,
	}
	for _, left := range did.Removed {
		done.Removed = append(done.Removed, Removed(left))
	}
	return done, nil
}
