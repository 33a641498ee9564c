package generations

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/partition"
)

// Dividing says what becomes of the generations of a route.
type Dividing int

// What a change may do with generations.
const (
	CheckOnly  Dividing = iota // nothing is made: it is only said whether it could be
	MakeWanted                 // the generation that is wanted is made, if it is not the newest one
	TakeOthers                 // those that others have made are taken as they are
)

// makeTries is how often a generation is tried to be made while other instances are faster.
const makeTries = 4

// Divide finds the generations of a route, and makes the one that is wanted. was is the route as it runs with partitions already; nil: it does not.
// With CheckOnly the route that is returned may have no generations.
func (m Maker) Divide(ctx context.Context, w Wanted, was *Route, how Dividing) (*Route, error) {
	for try := 1; ; try++ {
		list, err := partition.Find(ctx, m.JS, m.Service, w.Route)
		if err != nil {
			return nil, err
		}
		streams := partition.Running(list)
		if how == TakeOthers && len(list) > 0 {
			return New(m.JS, w.Route, streams), nil
		}
		if len(list) == 0 && was != nil { // it is made anew, from its start on, when it is certainly gone
			if _, err := m.JS.Stream(ctx, was.Newest().Name()); err == nil {
				return nil, fmt.Errorf("stream %s exists, but the server does not list it", was.Newest().Name())
			} else if !errors.Is(err, jetstream.ErrStreamNotFound) {
				return nil, err
			}
		}
		if err := w.find(ctx); err != nil {
			return nil, err
		}
		if len(list) == 0 || !list[len(list)-1].Equal(w.Layout) {
			if how == CheckOnly {
				err = m.Check(ctx, streams, w)
			} else {
				streams, err = m.Next(ctx, streams, w)
			}
		}
		switch {
		case err == nil:
			return New(m.JS, w.Route, streams), nil
		case !errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) || try == makeTries:
			return nil, err
		}
	}
}

// find finds the stream of the user.
func (w *Wanted) find(ctx context.Context) (err error) {
	if w.Origin != nil {
		w.Stream, err = w.Origin(ctx)
	}
	return err
}

// IsBehind tells whether there is a generation that is newer than those that a part knows of. What is before in its keys may have been handed over to that.
func (m Maker) IsBehind(ctx context.Context, p *Part) (bool, error) {
	known := p.Of.Number
	if p.To != nil {
		known = p.To.Number
	}
	list, err := partition.Find(ctx, m.JS, m.Service, p.Route)
	return len(list) > 0 && list[len(list)-1].Number > known, err
}
