package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/consumer/internal/durables"
	"github.com/relaymq/relay/internal/provision"
	"github.com/relaymq/relay/internal/transient"
	"github.com/relaymq/relay/supervisor"
)

const maxAckPending = provision.MaxAckPending

// setup is how the durable of a source is to be: it is made or changed by this before the source is open, and an edit is judged by it later.
type setup struct {
	*binding
	*durables.Durable
	err     error  // why it is not open
	adopted string // what the mark of the durable said when it was opened
}

// newSetup is for the durable of a source.
func newSetup(s *source) setup {
	b := s.binding
	return setup{binding: b, Durable: durables.New(durables.Config{
		JS: b.relay.js, Log: b.log, Service: b.relay.cfg.Service, Stream: b.stream, Durable: b.durable, Due: b.due, Adopt: b.relay.cfg.Adopt,
		Patterns: b.wanted, Start: func() durables.Start { return b.routes[0].cfg.begins() }, Provided: b.provided,
		FormerAckWait: func(have time.Duration) time.Duration {
			if b.relay.placing.Plans() { // of a reload, which changes it
				return have
			}
			return b.routes[0].ackWaitBefore
		},
		Unknown: s.unwanted.strays.Unknown(), Risks: b.risks, Floors: s.floors,
		Differs: func(fields []string) error { return &durableDiffers{b.stream, b.durable, fields} },
		CatchUp: s.catchUp, Listings: &b.relay.listings,
	})}
}

// begins is where the route begins on a durable that does not exist yet.
func (r Route) begins() durables.Start {
	return durables.Start{Policy: r.Start.Policy, Text: r.Start.String()}
}

// wanted are the subjects that the routes want.
func (b *binding) wanted() (list []durables.Pattern) {
	for _, p := range b.patterns {
		rt := p.route
		list = append(list, durables.Pattern{
			Subject: p.pattern, Route: rt.cfg.Name, Log: rt.log, Start: rt.cfg.begins(), Ordered: rt.cfg.Order == supervisor.OrderKey,
		})
	}
	return list
}

// provided is what this configuration says of the durable.
func (b *binding) provided() provision.Durable {
	d := provision.Durable{
		Name: b.durable, Pinned: b.leased(), AckWait: b.routes[0].cfg.AckWait,
		Mark: provision.Mark{Service: b.relay.cfg.Service, Routes: make(map[string][]string)},
	}
	for _, p := range b.patterns {
		name := p.route.cfg.Name
		if b.due {
			name = p.route.name()
		}
		d.Mark.Routes[name] = append(d.Mark.Routes[name], p.pattern)
	}
	if b.due {
		d.Filtered = true
		return d
	}
	switch start := b.routes[0].cfg.Start; start.Policy {
	case "new":
		d.Start.Policy = jetstream.DeliverNewPolicy
	case "since":
		d.Start = provision.Start{Policy: jetstream.DeliverByStartTimePolicy, Since: &start.Since}
	case "seq":
		d.Start = provision.Start{Policy: jetstream.DeliverByStartSequencePolicy, Seq: start.Seq}
	}
	return d
}

// risks are those of the stream for the route whose messages may wait longest. The retry stream is relay's own.
func (b *binding) risks(c jetstream.StreamConfig) []string {
	if b.due || b.routes[0].cfg.part != nil {
		return nil
	}
	span := time.Duration(0)
	for _, rt := range b.routes {
		span = max(span, rt.now().Retry.MaxAge)
	}
	return provision.Risks(c, span)
}

// differs is why the durable cannot be used as it is, if so.
func (s *setup) differs() *durableDiffers {
	var d *durableDiffers
	errors.As(s.err, &d)
	return d
}

// lacksStream tells whether its stream does not exist.
func (s *setup) lacksStream() bool {
	var m *durables.MissingStream
	return errors.As(s.err, &m)
}

// waits tells whether the source may be set up later, while others run.
func (s *setup) waits() bool { return transient.Is(s.err) || s.differs() != nil || s.lacksStream() }

// lookAt looks at the durables of many sources side by side.
func lookAt(s *source, ctx context.Context) error { return s.setup.Look(ctx) }

// repeats are the errors of durables that would bring again what was handled, where the configuration does not say that this is meant: start: all
// may be a habit, and a sequence or a time is not.
func (s *setup) repeats() (faults []error) {
	does := "does not exist yet, and with start: all it delivers again"
	if s.Have != nil {
		does = "has passed messages on subjects that the route adds, and with start: all it hands over"
	}
	for _, a := range s.Again {
		if a.All {
			faults = append(faults, &SetupError{s.routes[0].cfg.Name, fmt.Errorf(
				"durable %s %s messages that were handled before: %v. To allow this: relay reload --deliver-again, or start: {seq: 1}", s.durable, does, a)})
		}
	}
	return faults
}
