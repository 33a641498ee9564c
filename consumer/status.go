package consumer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/relaymq/relay/supervisor"
)

// Status is what one instance says of itself.
type Status struct {
	Instance string    `json:"instance"`
	Service  string    `json:"service"`
	Started  time.Time `json:"started"`
	Ready    bool      `json:"ready"`
	Trouble  []string  `json:"trouble,omitempty"`
	Orders   uint64    `json:"orders"` // revision of the last order of an operator that was applied
	// Parked messages are in the retry stream, waiting or due, of all routes and instances; up to 15 s old.
	Parked int64         `json:"parked"`
	Routes []RouteStatus `json:"routes"`
}

// RouteStatus is a route on one instance.
type RouteStatus struct {
	Name   string     `json:"name"`
	State  string     `json:"state"` // starting, flowing, waiting, probing, paused or stopped
	Why    string     `json:"why,omitempty"`
	Since  *time.Time `json:"since,omitempty"`
	Until  *time.Time `json:"until,omitempty"` // waiting: the next try
	Stream string     `json:"stream"`
	// Key and Order are those of the configuration.
	Key   string `json:"key"`
	Order string `json:"order"`
	// Running handlers, those that ignore their timeout, messages that wait for a slot, and for their key.
	Running int            `json:"running"`
	Stuck   int            `json:"stuck,omitempty"`
	Window  int            `json:"window"`
	Stash   int            `json:"stash"`
	Keys    map[string]int `json:"keys,omitempty"`
	// HeldMessages are in memory, HeldBytes their size but for those in handlers, and at HeldBytesLimit no more are pulled.
	HeldMessages   int `json:"held_messages"`
	HeldBytes      int `json:"held_bytes"`
	HeldBytesLimit int `json:"held_bytes_limit"`
	// AckPending deliveries of the route's durable wait for their settlement, on all instances.
	AckPending int `json:"ack_pending"`
	// Totals of this instance since its start.
	Acked   uint64 `json:"acked"`
	Retried uint64 `json:"retried"`
	Dead    uint64 `json:"dead"`
	// Waiting are the keys that wait, probe or are suspended, longest first, at most 100.
	Waiting []KeyStatus `json:"waiting,omitempty"`
}

// KeyStatus is a key that does not simply flow.
type KeyStatus struct {
	Key      string     `json:"key"`
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

// maxKeysShown bounds a status.
const maxKeysShown = 100

// Status is a snapshot of this instance. It changes nothing and asks nobody.
func (r *Relay) Status() Status {
	s := Status{Instance: r.cfg.Instance, Service: r.cfg.Service, Started: r.since(), Ready: true, Orders: r.obeyed.Load(), Parked: r.retention.parked.Load()}
	if err := r.Ready(); err != nil {
		s.Ready, s.Trouble = false, strings.Split(err.Error(), "\n")
	}
	for _, src := range r.openSources() {
		if text := src.strayTrouble(); text != "" {
			s.Trouble = append(s.Trouble, text)
		}
	}
	for _, rt := range r.routes {
		s.Routes = append(s.Routes, rt.status())
	}
	return s
}

func (rt *route) status() RouteStatus {
	g := rt.group.Status()
	s := RouteStatus{
		Name: rt.cfg.Name, Key: rt.cfg.Key, Order: rt.cfg.Order, State: g.State.String(), Why: g.Why, Since: known(g.Since), Running: g.Running, Stuck: g.Stuck,
		Window: g.Window, Stash: g.StashMessages, Keys: map[string]int{},
		Acked:   rt.count.settled[supervisor.AckMessage].Load(),
		Retried: rt.count.settled[supervisor.RetryLater].Load() + rt.count.kept.Load(),
		Dead:    rt.count.settled[supervisor.DeadLetter].Load(),
	}
	holds := rt.holds()
	s.HeldMessages, s.HeldBytes, s.HeldBytesLimit = holds.Messages, holds.Bytes, rt.most.Bytes
	if g.State == supervisor.Waiting {
		s.Until = known(g.Until)
	}
	if state, why, since, yes := rt.starting(); yes {
		s.State, s.Why, s.Since, s.Until = state, why, known(since), nil
	}
	rt.mu.Lock()
	if rt.paused != "" {
		s.State, s.Why = "paused", rt.paused
	}
	if rt.stopped != nil {
		s.State, s.Why = "stopped", rt.stopped.Error()
	}
	rt.mu.Unlock()
	for _, src := range rt.relay.openSources() {
		if src.serves(rt) && !src.due {
			if until := src.pausedUntil(); !until.IsZero() && s.State != "stopped" {
				s.State, s.Why, s.Until = "paused", "its durable is paused on the server (nats consumer resume ends that)", &until
			}
			if src.isEdited() {
				s.State, s.Why = "stopped", "its durable was edited: see trouble"
			}
			s.Stream, s.AckPending = src.stream, src.session.AckPending()
		}
	}
	for state, n := range g.Keys {
		if n > 0 {
			s.Keys[state.String()] = n
		}
	}
	for _, k := range rt.group.KeyStates(maxKeysShown) {
		ks := KeyStatus{
			Key: k.Key, State: k.State.String(), Why: k.Why, Since: k.Since, Stash: k.Stash, Failures: k.Failures,
			Restarts: k.Restarts, Error: errorText(k.LastErr), Child: k.Child,
		}
		if k.State == supervisor.Waiting {
			ks.Until = known(k.Until)
		}
		s.Waiting = append(s.Waiting, ks)
	}
	return s
}

func known(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// statusSubject is asked by `relay status`; every instance answers.
func statusSubject(service string) string { return service + ".ctl.status" }

// answerStatus makes the instance a NATS micro service, so that `nats micro ls`, `info` and `stats` see it too. There is no
// queue group: who asks wants to hear of every instance.
func (r *Relay) answerStatus() (micro.Service, error) {
	service, err := micro.AddService(r.nc, micro.Config{
		Name: r.cfg.Service, Version: "0.1.0", Description: "relay: supervised consumers of JetStream streams",
		Metadata:           map[string]string{"instance": r.cfg.Instance},
		QueueGroupDisabled: true,
	})
	if err != nil {
		return nil, fmt.Errorf("micro service: %w", err)
	}
	err = service.AddEndpoint("status", micro.HandlerFunc(func(req micro.Request) {
		_ = req.RespondJSON(r.Status()) // whoever asked asks again
	}), micro.WithEndpointSubject(statusSubject(r.cfg.Service)))
	if err != nil {
		_ = service.Stop()
		return nil, fmt.Errorf("micro service: %w", err)
	}
	return service, nil
}

// How long AskStatus waits for the first instance, and for one more.
const (
	firstAnswer = 2 * time.Second
	nextAnswer  = 250 * time.Millisecond
)

// ErrNobody says that no instance is running.
var ErrNobody = errors.New("no instance of relay answers")

// AskStatus asks all instances of a service how they are. It returns [ErrNobody] when none answers within two seconds; more
// answers are waited for as long as each comes within a quarter of a second.
func AskStatus(ctx context.Context, nc *nats.Conn, service string) ([]Status, error) {
	inbox := nc.NewInbox()
	sub, err := nc.SubscribeSync(inbox)
	if err != nil {
		return nil, err
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := nc.PublishRequest(statusSubject(service), inbox, nil); err != nil {
		return nil, err
	}
	var list []Status
	for wait := firstAnswer; ; wait = nextAnswer {
		next, cancel := context.WithTimeout(ctx, wait)
		m, err := sub.NextMsgWithContext(next)
		cancel()
		switch {
		case errors.Is(err, nats.ErrNoResponders) || err != nil && next.Err() != nil && ctx.Err() == nil:
			if len(list) == 0 {
				return nil, ErrNobody
			}
			return list, nil
		case err != nil:
			return list, err
		}
		var s Status
		if err := json.Unmarshal(m.Data, &s); err != nil {
			return list, fmt.Errorf("an instance answers what is no status: %w", err)
		}
		list = append(list, s)
	}
}
