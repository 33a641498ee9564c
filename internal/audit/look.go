package audit

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/retry"
)

// Auditor asks the server.
type Auditor struct {
	JS      jetstream.JetStream
	API     string // prefix of the JetStream API's subjects
	Service string
	Retry   string // the retry stream
	Book    *Book
	// Lives is that of [Compare].
	Lives func(name string) bool
	// Operated asks for what operators did with the retries of a stream, by route, since a time. Nil: nothing.
	Operated func(ctx context.Context, stream string, since time.Time) (map[string]Counts, error)
}

// again is how long after a look the next one is, while it does not balance.
const again = 300 * time.Millisecond

// Scope is whose messages of the stream in the retry stream count.
type Scope uint8

// The scopes.
const (
	OwnRoutes Scope = iota // those of the record's routes
	AllRoutes              // all: also those of routes that are gone, when no other durable of the stream has routes
)

// Audit compares the record of a durable with the server, again and again until it balances or patience is over: an instance may
// have counted what it has not written yet.
func (a *Auditor) Audit(ctx context.Context, stream, durable string, of Scope, patience time.Duration) (Balance, error) {
	for began := time.Now(); ; {
		b, err := a.once(ctx, stream, durable, of)
		if err != nil || b.Verdict == Balanced && b.Uncounted == 0 || b.Verdict == Unknown || b.final || time.Since(began) >= patience {
			return b, err
		}
		select {
		case <-ctx.Done():
			return b, ctx.Err()
		case <-time.After(again):
		}
	}
}

func (a *Auditor) once(ctx context.Context, stream, durable string, of Scope) (Balance, error) {
	r, err := a.Book.Get(ctx, stream, durable)
	if err != nil {
		return Balance{}, err
	}
	before, err := a.server(ctx, r, of)
	if err != nil {
		return Balance{}, err
	}
	if r, err = a.Book.Get(ctx, stream, durable); err != nil {
		return Balance{}, err
	}
	after, err := a.server(ctx, r, of)
	if err != nil {
		return Balance{}, err
	}
	if err := a.addOperated(ctx, r, of); err != nil {
		return Balance{}, err
	}
	return Compare(r, before, after, a.Lives), nil
}

// addOperated adds to a record what operators did with the retries of its routes.
func (a *Auditor) addOperated(ctx context.Context, r *Record, of Scope) error {
	if a.Operated == nil {
		return nil
	}
	list, err := a.Operated(ctx, r.Stream, r.Since)
	if err != nil {
		return err
	}
	for route, n := range list {
		if c, has := r.Routes[route]; has || of == AllRoutes {
			r.Routes[route] = c.Add(n)
		}
	}
	return nil
}

// server asks for all that the record is compared with.
func (a *Auditor) server(ctx context.Context, r *Record, of Scope) (s Server, err error) {
	s.Durables = map[string]Counted{}
	ask := func(stream, durable string) error {
		c, err := a.JS.Consumer(ctx, stream, durable)
		if errors.Is(err, jetstream.ErrConsumerNotFound) || errors.Is(err, jetstream.ErrStreamNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		info := c.CachedInfo()
		s.Durables[Name(stream, durable)] = Counted{info.Created, info.Delivered.Consumer, info.NumAckPending, info.NumPending}
		return nil
	}
	if err := ask(r.Stream, r.Durable); err != nil {
		return s, err
	}
	var routes []string
	for route := range r.Routes {
		if err := ask(a.Retry, retry.DueDurable(route, r.Stream)); err != nil {
			return s, err
		}
		routes = append(routes, route)
	}
	if of == AllRoutes {
		routes = []string{"*"}
	}
	for _, route := range routes {
		for _, kind := range []string{".park.", ".due."} {
			n, _, err := Matching(ctx, a.JS.Conn(), a.API, a.Retry, a.Service+kind+route+"."+r.Stream+".>")
			if err != nil {
				return s, err
			}
			s.Parked += n
		}
	}
	return s, nil
}
