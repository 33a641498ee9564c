package source

import (
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/consumer/internal/durables"
	"github.com/relaymq/relay/internal/permission"
	"github.com/relaymq/relay/internal/plain"
	"github.com/relaymq/relay/internal/provision"
	"github.com/relaymq/relay/internal/transient"
)

// Setup is how the durable of a source is to be: it is made or changed by this before the source is open, and an edit is judged by it later.
type Setup struct {
	*binding
	*durables.Durable
	Err     error  // why it is not open
	adopted string // what the mark of the durable said when it was opened
}

// newSetup is for the durable of a source.
func newSetup(s *Source) Setup {
	b := s.binding
	return Setup{binding: b, Durable: durables.New(durables.Config{
		JS: b.in.JS, Log: b.log, Service: b.in.Service, Stream: b.stream, Durable: b.durable, Due: b.due, Adopt: b.in.Adopt,
		Patterns: b.wanted, Start: func() durables.Start { return b.routes[0].Start.forDurable() }, Provided: b.provided,
		FormerAckWait: func(have time.Duration) time.Duration {
			if b.in.Plans() { // of a reload, which changes it
				return have
			}
			return b.routes[0].FormerAckWait
		},
		Unknown: s.Unwanted.strays.Unknown(), Risks: b.risks, Floors: s.floors,
		Differs: func(fields []string) error { return &DiffersError{b.stream, b.durable, fields} },
		CatchUp: s.CatchUp, Listings: b.in.Listings,
	})}
}

// wanted are the subjects that the routes want.
func (b *binding) wanted() (list []durables.Pattern) {
	for _, p := range b.patterns {
		rt := p.route
		list = append(list, durables.Pattern{
			Subject: p.pattern, Route: rt.Name, Log: rt.Log, Start: rt.Start.forDurable(), Ordered: rt.Ordered,
		})
	}
	return list
}

// provided is what this configuration says of the durable.
func (b *binding) provided() provision.Durable {
	d := provision.Durable{
		Name: b.durable, Pinned: b.leased(), AckWait: b.routes[0].AckWait,
		Mark: provision.Mark{Service: b.in.Service, Routes: make(map[string][]string)},
	}
	for _, p := range b.patterns {
		name := p.route.Name
		if b.due {
			name = p.route.Called
		}
		d.Mark.Routes[name] = append(d.Mark.Routes[name], p.pattern)
	}
	if b.due {
		d.Filtered = true
		return d
	}
	switch start := b.routes[0].Start; start.Policy {
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
	if b.due || b.routes[0].Part != nil {
		return nil
	}
	span := time.Duration(0)
	for _, rt := range b.routes {
		span = max(span, rt.MaxAge())
	}
	return provision.Risks(c, span)
}

// Differs is why the durable cannot be used as it is, if so.
func (s *Setup) Differs() *DiffersError {
	var d *DiffersError
	errors.As(s.Err, &d)
	return d
}

// LacksStream tells whether its stream does not exist.
func (s *Setup) LacksStream() bool {
	var m *durables.MissingStream
	return errors.As(s.Err, &m)
}

// Waits tells whether the source may be set up later, while others run.
func (s *Setup) Waits() bool { return transient.Is(s.Err) || s.Differs() != nil || s.LacksStream() }

// Probes are what this user must be permitted to publish for the source, once it was looked at.
func (s *Setup) Probes() (list []permission.Probe) {
	api, conn := s.in.API, s.in.Conn
	if s.Have == nil {
		to := api + "CONSUMER.CREATE." + s.stream + "." + s.durable
		if f := s.Want.FilterSubject; f != "" {
			to += "." + f
		}
		// For another stream than the subject names: refused. What is no JSON would be refused with a line in the server's log.
		list = append(list, permission.Probe{What: "making durable " + s.durable, Msg: &nats.Msg{Subject: to, Reply: conn.NewInbox(), Data: []byte(`{"stream_name":"-"}`)}})
	}
	return append(list,
		// Not JSON: answered with a 400.
		permission.Probe{What: "pulling from durable " + s.durable, Msg: &nats.Msg{
			Subject: api + "CONSUMER.MSG.NEXT." + s.stream + "." + s.durable, Reply: conn.NewInbox(), Data: []byte("{"),
		}},
		// Progress of a sequence that cannot be pending.
		permission.Probe{What: "acknowledging on durable " + s.durable, Msg: &nats.Msg{
			Subject: "$JS.ACK." + s.stream + "." + s.durable + ".1.0.0.0.0", Data: []byte("+WPI"),
		}})
}

// DiffersError says that a durable exists with settings that relay does not work with, or that the configuration does
// not ask for. It is never changed without Config.Adopt.
type DiffersError struct {
	Stream, Durable string
	Fields          []string // "ack_wait is 10s, not 30s"
}

func (e *DiffersError) Error() string {
	return fmt.Sprintf("durable %s on stream %s exists with other settings: %s; run with --adopt to change them, or name another durable",
		e.Durable, e.Stream, plain.And(e.Fields))
}
