package relaytest

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/dlq"
	"github.com/relaymq/relay/internal/natstest/embedded"
	"github.com/relaymq/relay/internal/subject"
)

// patience is how long anything may take, on a machine however busy. Whatever waits ends at once when what it waits for is there.
const patience = 30 * time.Second

// Relay is a relay that runs until the test ends, on a server of its own.
type Relay struct {
	*consumer.Relay
	// NC is a connection to the server, for the test.
	NC *nats.Conn

	t       testing.TB
	js      jetstream.JetStream
	service string
	routes  []consumer.Route
	notes   *notes
	ended   chan struct{} // closed when Run has returned
	err     error         // what it returned
}

// Start runs routes on a server inside this process until the test ends. It makes the streams that they need: for each route with
// a Stream that one, and TEST for the subjects of all others. A route that does not say where it starts begins with the first message.
// It returns when relay is ready. The log goes to t, unless cfg has a Logger. Handlers have five seconds to end with the test, unless
// cfg.Drain says otherwise.
//
// Routes have their own delays: one whose handler fails in the test wants a Retry with a short Min.
func Start(t testing.TB, cfg consumer.Config, routes ...consumer.Route) *Relay {
	t.Helper()
	server := embedded.Start(t, nil)
	r := &Relay{NC: connect(t, server), t: t, service: cmp.Or(cfg.Service, "relay"), notes: newNotes(), ended: make(chan struct{})}
	var err error
	if r.js, err = jetstream.New(r.NC); err != nil {
		t.Fatal(err)
	}
	cfg.Use = append([]consumer.Middleware{r.notes.take}, cfg.Use...)
	cfg.Drain = cmp.Or(cfg.Drain, 5*time.Second)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	for _, rt := range routes {
		if rt.Start == (consumer.Start{}) {
			rt.Start = consumer.StartAll
		}
		r.routes = append(r.routes, rt)
	}
	r.makeStreams()
	if r.Relay, err = consumer.New(connect(t, server, nats.ReconnectBufSize(-1)), cfg, r.routes...); err != nil {
		t.Fatal(err)
	}
	// The context of the test is cancelled before its clean-up, and values of it are handed on.
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	go func() {
		defer close(r.ended)
		r.err = r.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-r.ended
		if r.err != nil {
			t.Errorf("relay ended with: %v", r.err)
		}
	})
	r.awaitReady()
	return r
}

// connect is a connection through memory until the test ends.
func connect(t testing.TB, server *embedded.Server, opts ...nats.Option) *nats.Conn {
	t.Helper()
	closed := make(chan struct{})
	nc, err := nats.Connect("", append(opts, nats.InProcessServer(server), nats.ClosedHandler(func(*nats.Conn) { close(closed) }))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		nc.Close()
		<-closed // nothing is left for a goleak of the caller
	})
	return nc
}

// makeStreams makes the streams of the routes.
func (r *Relay) makeStreams() {
	r.t.Helper()
	subjects := make(map[string][]string)
	var names []string
	for _, rt := range r.routes {
		name := cmp.Or(rt.Stream, "TEST")
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
		subjects[name] = append(subjects[name], rt.Subjects...)
	}
	for _, name := range names {
		_, err := r.js.CreateStream(r.t.Context(), jetstream.StreamConfig{Name: name, Subjects: widest(subjects[name])})
		if err != nil {
			r.t.Fatalf("relaytest: stream %s for %q: %v", name, subjects[name], err)
		}
	}
}

// widest are the patterns that no other one covers.
func widest(patterns []string) (list []string) {
	for i, p := range patterns {
		covered := func(j int) bool {
			other := patterns[j]
			return subject.Covers(other, p) && (j < i || !subject.Covers(p, other))
		}
		needed := true
		for j := range patterns {
			needed = needed && (j == i || !covered(j))
		}
		if needed {
			list = append(list, p)
		}
	}
	return list
}

func (r *Relay) awaitReady() {
	r.t.Helper()
	late := time.After(patience)
	for r.Ready() != nil {
		select {
		case <-r.ended:
			r.t.Fatalf("relay did not start: %v", r.err)
		case <-late:
			r.t.Fatalf("relay is not ready after %v: %v", patience, r.Ready())
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// Publish publishes a message, and waits until the server has stored it.
func (r *Relay) Publish(subject, body string) *Sent {
	r.t.Helper()
	return r.PublishMsg(&nats.Msg{Subject: subject, Data: []byte(body)})
}

// PublishMsg is [Relay.Publish] for a message with headers.
func (r *Relay) PublishMsg(m *nats.Msg) *Sent {
	r.t.Helper()
	ack, err := r.js.PublishMsg(r.t.Context(), m)
	if err != nil {
		r.t.Fatalf("relaytest: publish on %s: %v", m.Subject, err)
	}
	s := &Sent{relay: r, subject: m.Subject, stream: ack.Stream, sequence: ack.Sequence}
	for _, rt := range r.routes {
		if slices.ContainsFunc(rt.Subjects, func(p string) bool { return subject.Matches(p, m.Subject) }) {
			s.routes = append(s.routes, rt.Name)
		}
	}
	return s
}

// letter is the dead letter of a message, if there is one.
func (r *Relay) letter(ctx context.Context, route, stream string, sequence uint64) (*dlq.Entry, error) {
	store, err := dlq.Attach(ctx, r.js, r.service)
	if errors.Is(err, dlq.ErrNoStream) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for e, err := range store.List(ctx, dlq.Filter{Route: route, WithBody: true}) {
		if err != nil {
			return nil, err
		}
		if e.Stream == stream && e.Sequence == sequence {
			return &e, nil
		}
	}
	return nil, nil
}
