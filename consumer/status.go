package consumer

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/relaymq/relay/internal/version"
	"github.com/relaymq/relay/supervisor"
)

// Status is what one instance says of itself.
type Status struct {
	Instance string    `json:"instance"`
	Service  string    `json:"service"`
	Version  string    `json:"version,omitempty"`
	Started  time.Time `json:"started"`
	// Config is the configuration that the instance runs; nil when it was made by a program.
	Config   *ConfigStatus `json:"config,omitempty"`
	Ready    bool          `json:"ready"`
	Draining bool          `json:"draining,omitempty"`
	Trouble  []string      `json:"trouble,omitempty"`
	Notices  []string      `json:"notices,omitempty"` // what is wrong, and keeps nothing from working
	// Orders is the revision of the last order of an operator that was applied, and OrdersBucket when the bucket was made in
	// which it is: one that was made anew begins at 1.
	Orders       uint64    `json:"orders"`
	OrdersBucket time.Time `json:"orders_bucket,omitzero"`
	// Parked messages are in the retry stream, waiting or due, and Stored ones in the dead letters: of all routes and instances,
	// up to 15 s old.
	Parked int64         `json:"parked"`
	Stored uint64        `json:"dead_letters"`
	Routes []RouteStatus `json:"routes"`
	// Gone are instances that ended within the last hour and are not back, as far as this one knows.
	Gone []MemberStatus `json:"gone,omitempty"`
	// Limits are those that hold on this instance, by name.
	Limits []LimitStatus `json:"limits,omitempty"`

	// Page of Pages: what is too large for one message comes in several, which AskStatus puts together.
	Page  int `json:"page,omitempty"`
	Pages int `json:"pages,omitempty"`
}

// RouteStatus is a route on one instance.
type RouteStatus struct {
	Name  string     `json:"name"`
	State string     `json:"state"` // one of RouteFlowing and the others
	Why   string     `json:"why,omitempty"`
	Since *time.Time `json:"since,omitempty"` // of the outage, through all its waits and probes
	Until *time.Time `json:"until,omitempty"` // waiting, suspended: the next try; limited: when an endpoint permits more
	// Pause is the operator's order while it holds, whatever the state.
	Pause   *Order `json:"pause,omitempty"`
	Stream  string `json:"stream"`
	Durable string `json:"durable"`
	// Subjects are those of the configuration.
	Subjects []string `json:"subjects,omitempty"`
	// Config is the digest of its settings; nil: nobody told it.
	Config *ConfigDigest `json:"config,omitempty"`
	// Key and Order are those of the configuration.
	Key   string `json:"key"`
	Order string `json:"order"`
	// Holder says which instance has the route; nil: all instances handle its messages.
	Holder *HolderStatus `json:"holder,omitempty"`
	// Partitions of a route that has some: the rest is what all parts that are on this instance say together. Nil: it has none.
	Partitions *PartitionsStatus `json:"partitions,omitempty"`
	// Running handlers, those that ignore their timeout, messages that wait for a slot, and for their key.
	Running int `json:"running"`
	Stuck   int `json:"stuck,omitempty"`
	// Former are those of Running that are handlers of before a change of the route.
	Former int `json:"former,omitempty"`
	Window int `json:"window"`
	Stash  int `json:"stash"`
	// Aside are messages that were given back to their stream, because something that they wait for is not over, and that are called
	// back when it is.
	Aside int            `json:"aside,omitempty"`
	Keys  map[string]int `json:"keys,omitempty"`
	// HeldMessages are in memory, HeldBytes their size but for those in handlers, and at HeldBytesLimit no more are pulled.
	HeldMessages   int `json:"held_messages"`
	HeldBytes      int `json:"held_bytes"`
	HeldBytesLimit int `json:"held_bytes_limit"`
	// CatchUp is what the durable had passed when the route joined it or got more subjects. Nil: nothing.
	CatchUp *CatchUpStatus `json:"catch_up,omitempty"`
	// Again is what the durable delivers although it was handled before, while some of it may be to come.
	Again []Again `json:"again,omitempty"`
	// Backlog is what waits for the route on all instances. Nil: its durable is not known.
	Backlog *Backlog `json:"backlog,omitempty"`
	// Totals of this instance since its start.
	Acked   uint64 `json:"acked"`
	Retried uint64 `json:"retried"`
	Dead    uint64 `json:"dead"`
	// Callers is what became of messages whose publishers asked for something. Nil: there was none.
	Callers *CallersStatus `json:"callers,omitempty"`
	// Fallback is the second handler. Nil: there is none.
	Fallback *FallbackStatus `json:"fallback,omitempty"`
	// Stored are the route's dead letters that are stored now, of all instances. Nil: not counted yet.
	Stored *int `json:"dead_letters,omitempty"`
	// Waiting are the keys that wait, probe or are suspended, longest first: as many as were asked for and fit. Of the others
	// WaitingMore is the number.
	Waiting []KeyStatus `json:"waiting,omitempty"`
	// KeyKnown answers StatusRequest.Key: the key has messages or failures, or is paused, on this instance.
	KeyKnown    bool `json:"key_known,omitempty"`
	WaitingMore int  `json:"waiting_more,omitempty"`
}

// KeyStatus is a key that does not simply flow.
type KeyStatus struct {
	// Key is cut when it is long: then KeyBytes is its length.
	Key      string     `json:"key"`
	KeyBytes int        `json:"key_bytes,omitempty"`
	State    string     `json:"state"`
	Why      string     `json:"why"`
	Since    time.Time  `json:"since"`
	Until    *time.Time `json:"until,omitempty"`
	Stash    int        `json:"stash"`
	Failures int        `json:"failures,omitempty"`
	Restarts int        `json:"restarts,omitempty"`
	Error    string     `json:"error,omitempty"`
	Child    string     `json:"child"`
}

// What a status holds at most of what strangers wrote.
const (
	defaultKeys = 100
	maxKeys     = 10_000
	maxKeyShown = 256 // bytes
	maxTextLen  = 512
	maxTroubles = 100
)

// StatusRequest says how much to tell. The zero value asks for all routes and up to a hundred keys of each.
type StatusRequest struct {
	// Route is the only one to tell of; empty: all.
	Route string `json:"route,omitempty"`
	// Keys is how many keys of each route are told at most. Zero means 100, -1 none; more than 10,000 are not.
	Keys int `json:"keys,omitempty"`
	// Key is one of which the answer says whether it is known now.
	Key *string `json:"key,omitempty"`
}

func (q StatusRequest) keys() int {
	switch {
	case q.Keys < 0:
		return 0
	case q.Keys == 0:
		return defaultKeys
	}
	return min(q.Keys, maxKeys)
}

// Status is a snapshot of this instance. It changes nothing and asks nobody: counts of the server are up to some seconds old.
func (r *Relay) Status() Status { return r.status(StatusRequest{}) }

func (r *Relay) status(q StatusRequest) Status {
	s := Status{
		Instance: r.cfg.Instance, Service: r.cfg.Service, Version: version.String(), Started: r.since(), Ready: true, Draining: r.isDraining(),
		Parked: r.retention.parked.Load(), Config: r.config.Load(),
	}
	s.OrdersBucket, s.Orders = r.obeyed.last()
	s.Notices = r.obeyed.unread()
	if u := r.retention.usage.Load(); u != nil {
		s.Stored = u.Entries
	}
	if err := r.Ready(); err != nil {
		s.Ready = false
		for _, line := range strings.Split(err.Error(), "\n") {
			s.Trouble = append(s.Trouble, cut(line, maxTextLen))
		}
		if n := len(s.Trouble) - maxTroubles; n > 0 {
			s.Trouble = append(s.Trouble[:maxTroubles], fmt.Sprintf("and %d more", n))
		}
	}
	if r.cfg.Troubles != nil {
		for _, line := range r.cfg.Troubles() {
			s.Trouble = append(s.Trouble, cut(line, maxTextLen))
		}
	}
	for _, line := range r.fills.troubles() {
		s.Trouble = append(s.Trouble, cut(line, maxTextLen))
	}
	for _, o := range r.orphaned() {
		s.Trouble = append(s.Trouble, o.String())
	}
	for _, src := range r.openSources() {
		if text := src.strayTrouble(); text != "" {
			s.Trouble = append(s.Trouble, text)
		}
	}
	s.Limits, s.Gone = r.limitStatus(), r.grid.gone()
	s.Routes = r.routesStatus(q)
	return s
}

func (rt *route) status(keys int) RouteStatus {
	g := rt.group.Status()
	state, why, since := rt.condition(g)
	s := RouteStatus{
		Name: rt.name(), Durable: rt.cfg.Durable, Subjects: rt.cfg.Subjects, Key: rt.cfg.Key, Order: string(rt.cfg.Order), State: state, Why: cut(why, maxTextLen), Since: known(since),
		Running: g.Running + rt.formerlyRunning(), Former: rt.group.Former() + rt.formerlyRunning(), Stuck: g.Stuck, Window: g.Window, Stash: g.StashMessages, Aside: g.Aside, Keys: map[string]int{},
		Callers: rt.callersStatus(), Fallback: rt.fallbackStatus(), Holder: rt.holder(),
		Acked: rt.count.acked(), Retried: rt.count.retried(), Dead: rt.count.deadLetters(),
		Backlog: rt.backlog(), CatchUp: rt.catchUp(),
	}
	if c := rt.relay.config.Load(); c != nil {
		if d, told := c.Routes[rt.name()]; told {
			s.Config = &d
		}
	}
	holds := rt.holds()
	s.HeldMessages, s.HeldBytes, s.HeldBytesLimit = holds.Messages, holds.Bytes, rt.most.Load().Bytes
	if (state == RouteWaiting || state == RouteStopped) && g.State == supervisor.Waiting || state == RouteSuspended {
		s.Until = known(g.Until)
	}
	if own := rt.ownLimit(); own != nil && state == RouteLimited {
		if l := own.Status(); l.Left == 0 {
			s.Until = known(l.Until)
		}
	}
	rt.mu.Lock()
	s.Pause = rt.paused
	rt.mu.Unlock()
	if n, known := rt.relay.retention.dead.stored(rt.name()); known {
		s.Stored = &n
	}
	s.Stream = rt.cfg.Stream
	if u := rt.unit.Load(); u != nil {
		s.Stream = u.main.stream // also while it is not open
	}
	for _, src := range rt.relay.openSources() {
		if src.serves(rt) && !src.due {
			if until := src.health.pausedUntil(); !until.IsZero() && state == RoutePaused && s.Pause == nil {
				s.Until = &until
			}
			s.Stream = src.stream
			if b := s.Backlog; b == nil || b.Stream > 0 || b.Outstanding > 0 {
				s.Again = src.setup.again
			}
			if s.Why == "" && src.holdsNothingOf(rt) {
				s.Why = "nothing can arrive: stream " + src.stream + " holds none of its subjects"
			}
		}
	}
	for state, n := range g.Keys {
		if n > 0 {
			s.Keys[state.String()] = n
		}
	}
	for _, k := range rt.group.KeyStates(keys) {
		ks := KeyStatus{
			Key: cut(k.Key, maxKeyShown), State: k.State.String(), Why: cut(k.Why, maxTextLen), Since: k.Since, Stash: k.Stash, Failures: k.Failures,
			Restarts: k.Restarts, Error: cut(errorText(k.LastErr), maxTextLen), Child: k.Child,
		}
		if len(k.Key) > maxKeyShown {
			ks.KeyBytes = len(k.Key)
		}
		if k.Limit != "" {
			ks.State = RouteLimited
		}
		if k.State == supervisor.Waiting {
			ks.Until = known(k.Until)
		}
		s.Waiting = append(s.Waiting, ks)
	}
	s.WaitingMore = max(0, g.NotFlowing-len(s.Waiting))
	return s
}

// cut shortens a text to about so many bytes, and says how many it had.
func cut(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	end := limit
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	return fmt.Sprintf("%s… (%d bytes)", s[:end], len(s))
}

func known(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
