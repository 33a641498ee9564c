// Package events publishes what happened, gathers what is alike, and reads what is stored. What an event is, is for programs: package event.
package events

import (
	"context"
	"encoding/json"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/relaymq/relay/event"
	"github.com/relaymq/relay/internal/beat"
	"github.com/relaymq/relay/internal/eventkind"
)

const (
	queued    = 1024 // events that wait to be published
	listening = 256  // events that whoever listens in this process has not taken yet
	maxGroups = 1000 // that are gathered at once: a group more is published with what has no group
	window    = time.Minute
)

// Bus gathers events and publishes them. Create it with [NewBus].
type Bus struct {
	service, instance string
	publish           func(event.Event) error
	group             func(why string) string

	queue   chan event.Event
	out     chan event.Event
	muted   sync.Map // routes
	counts  map[event.Kind]*atomic.Uint64
	dropped atomic.Uint64
	unsent  atomic.Uint64
}

// NewBus returns one that is not running yet. group makes one of errors that are
// alike.
func NewBus(service, instance string, group func(why string) string, publish func(event.Event) error) *Bus {
	b := &Bus{
		service: service, instance: instance, publish: publish, group: group, counts: make(map[event.Kind]*atomic.Uint64),
		queue: make(chan event.Event, queued), out: make(chan event.Event, listening),
	}
	for _, k := range event.Kinds() {
		b.counts[k] = new(atomic.Uint64)
	}
	return b
}

// Mute has events of a route not published.
func (b *Bus) Mute(route string) { b.muted.Store(route, nil) }

// Unmute has them published again.
func (b *Bus) Unmute(route string) { b.muted.Delete(route) }

// Report notes that something happened just now. It never blocks; what does not fit is dropped and counted. Text is a line for people, of one
// event; when several are gathered, their number is told beside it.
func (b *Bus) Report(kind event.Kind, d event.Data) {
	if _, muted := b.muted.Load(d.Route); muted {
		return
	}
	now := time.Now()
	d.Count, d.First = 1, now.UTC()
	select {
	case b.queue <- event.Event{Kind: kind, Service: b.service, Instance: b.instance, Time: now, Data: d}:
	default:
		b.dropped.Add(1)
	}
}

// Events are those that are published, also while nobody takes them: what does not fit into the channel's 256 is dropped. It is closed
// when Run returns.
func (b *Bus) Events() <-chan event.Event { return b.out }

// gathered are events of one group that follow the first one.
type gathered struct {
	event event.Event // the last of them, with their number; Count 0: none followed
	ends  time.Time
}

type group struct {
	kind       event.Kind
	route, why string
}

// Run publishes until ctx is done. Then it publishes what is queued and gathered, and returns.
func (b *Bus) Run(ctx context.Context) {
	defer close(b.out)
	groups := make(map[group]*gathered)
	tick := beat.NewTicker(window / 60)
	defer tick.Stop()
	for {
		select {
		case e := <-b.queue:
			b.take(groups, e)
		case now := <-tick.C:
			tick.Next()
			b.flush(groups, now)
		case <-ctx.Done():
			for len(b.queue) > 0 {
				b.take(groups, <-b.queue)
			}
			b.flush(groups, time.Now().Add(2*window))
			return
		}
	}
}

// take publishes the first event of a group, and gathers the others.
func (b *Bus) take(groups map[group]*gathered, e event.Event) {
	e.Data = bounded(e.Data)
	if e.Kind == eventkind.Audit || e.Kind == eventkind.ReplayDone || e.Kind == eventkind.ReplayStopped {
		b.send(e) // each of them counts
		return
	}
	g := group{e.Kind, e.Route, b.group(e.Why)}
	have := groups[g]
	switch {
	case have == nil && len(groups) >= maxGroups:
		g.why = ""
		if have = groups[g]; have == nil {
			have = &gathered{ends: e.Time.Add(window)}
			groups[g] = have
		}
	case have == nil:
		groups[g] = &gathered{ends: e.Time.Add(window)}
		b.send(e)
		return
	}
	if have.event.Count > 0 {
		e.Count, e.First = have.event.Count+1, have.event.First
	}
	have.event = e
}

// flush publishes the groups whose minute is over. One of which nothing followed is forgotten; of the others the next minute begins.
func (b *Bus) flush(groups map[group]*gathered, now time.Time) {
	for g, have := range groups {
		switch {
		case now.Before(have.ends):
		case have.event.Count == 0:
			delete(groups, g)
		default:
			b.send(have.event)
			have.event, have.ends = event.Event{}, now.Add(window)
		}
	}
}

func (b *Bus) send(e event.Event) {
	e.ID = nuid.Next()
	if n := b.counts[e.Kind]; n != nil {
		n.Add(1)
	}
	select {
	case b.out <- e:
	default:
	}
	if b.publish(e) != nil {
		b.unsent.Add(1)
	}
}

// Publish sends an event to the server. It does not wait: whether anybody hears it is not known.
func Publish(nc *nats.Conn, e event.Event) error {
	if e.ID == "" {
		e.ID = nuid.Next()
	}
	e.Data = bounded(e.Data)
	body, err := json.Marshal(e)
	if err != nil {
		return err
	}
	return nc.PublishMsg(&nats.Msg{
		Subject: e.Subject(), Data: body, Header: nats.Header{"Content-Type": {eventkind.ContentType}, nats.MsgIdHdr: {e.ID}},
	})
}

var (
	published = prometheus.NewDesc("relay_events_total", "Events that this instance published, by kind. Several that were combined into one count once.", []string{"kind"}, nil)
	dropped   = prometheus.NewDesc("relay_events_dropped_total", "Events that were not published: too many at once, or the connection was away.", nil, nil)
)

// Collect gives the bus's metrics.
func (b *Bus) Collect(ch chan<- prometheus.Metric) {
	for kind, n := range b.counts {
		ch <- prometheus.MustNewConstMetric(published, prometheus.CounterValue, float64(n.Load()), string(kind))
	}
	ch <- prometheus.MustNewConstMetric(dropped, prometheus.CounterValue, float64(b.dropped.Load()+b.unsent.Load()))
}
