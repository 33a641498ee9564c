package durables

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/consumer/internal/catchup"
	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/provision"
	"github.com/relaymq/relay/internal/transient"
)

// countTimeout is how long a consumer that counts lives when it is not removed.
const countTimeout = 10 * time.Second

// Config says which durable the routes of a source want.
type Config struct {
	JS              jetstream.JetStream
	Log             *slog.Logger
	Service         string
	Stream, Durable string
	// Due says that the stream is the retry stream, which is relay's own.
	Due bool
	// Adopt lets a durable be changed that differs.
	Adopt bool
	// Patterns are the subjects that the routes want, and Start is where the route begins that the durable is made for. Provided is what this
	// configuration says of the durable. They are asked for when they are needed.
	Patterns func() []Pattern
	Start    func() Start
	Provided func() provision.Durable
	// FormerAckWait is the ack wait that the routes had before a change, for a durable with this one; 0: there was none.
	FormerAckWait func(have time.Duration) time.Duration
	// Unknown says that a message came which no route ever configured on the durable wants.
	Unknown *atomic.Bool
	// Risks says how the stream may lose messages that wait.
	Risks  func(jetstream.StreamConfig) []string
	Floors *Floors
	// Differs is the error about a durable that may not be used as it is.
	Differs func(fields []string) error

	CatchUp  *catchup.CatchUp
	Listings *Listings
}

// Pattern is a subject that a route wants.
type Pattern struct {
	Subject string
	Route   string
	Log     *slog.Logger // the route's
	Start   Start
	Ordered bool
}

// Start is where a route begins with messages that the stream holds already.
type Start struct {
	Policy string // all, new, since or seq; empty: nobody has said
	Text   string // as it is configured
}

func (s Start) isAll() bool { return s.Policy == "all" }

// Durable is one as its routes want it, and what is known of it before messages are pulled. What Look finds out is in its fields. One goroutine at
// a time uses it.
type Durable struct {
	cfg Config

	On      jetstream.Stream
	Want    jetstream.ConsumerConfig
	Have    jetstream.Consumer // nil: it is to be made
	Waiting Waiting            // then
	Again   []control.Again    // what it brings that was handled before
	Made    bool               // by this start

	lookedAt bool // once: what is said of a stream is said once
}

// New changes nothing, and asks nobody.
func New(cfg Config) *Durable { return &Durable{cfg: cfg} }

// MissingStream says that there is no stream of that name.
type MissingStream struct {
	Name string
	err  error
}

func (e *MissingStream) Error() string {
	return fmt.Sprintf("stream %s does not exist: add it under streams, or make it with: nats stream add %s", e.Name, e.Name)
}

func (e *MissingStream) Unwrap() error { return e.err }

// Look finds out what is to be done to use the durable, and whether it can work. It changes nothing.
func (d *Durable) Look(ctx context.Context) error {
	stream, err := d.cfg.JS.Stream(ctx, d.cfg.Stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		if d.cfg.Due {
			return fmt.Errorf("stream %s: %w", d.cfg.Stream, transient.Made(err)) // relay made it a moment ago
		}
		return &MissingStream{d.cfg.Stream, err}
	}
	if err != nil {
		return fmt.Errorf("stream %s: %w", d.cfg.Stream, err)
	}
	d.On, d.Have, d.Want = stream, nil, d.cfg.Provided().Wanted(stream.CachedInfo().Config.Subjects)
	if !d.lookedAt {
		d.lookedAt = true
		for _, risk := range d.cfg.Risks(stream.CachedInfo().Config) {
			d.cfg.Log.Warn("the stream can lose messages that wait: " + risk)
		}
	}
	consumer, err := stream.Consumer(ctx, d.cfg.Durable)
	switch {
	case errors.Is(err, jetstream.ErrConsumerNotFound):
		return d.lookAnew(ctx)
	case errors.Is(err, jetstream.ErrNotPullConsumer):
		return d.cfg.Differs([]string{"it is a push consumer"})
	case err != nil:
		return fmt.Errorf("durable %s on stream %s: %w", d.cfg.Durable, d.cfg.Stream, err)
	}
	d.Have = consumer
	have := consumer.CachedInfo().Config
	if err := d.mayUse(stream, have); err != nil {
		return err
	}
	if err := d.mayWiden(ctx, stream, have); err != nil {
		return err
	}
	again, err := d.passedAgain(ctx, stream, have)
	if len(again) > 0 {
		d.Again = again
	}
	return err
}

// lookAnew finds out what a durable brings that does not exist.
func (d *Durable) lookAnew(ctx context.Context) (err error) {
	if d.Waiting, err = d.mayMake(ctx, d.On, d.Want); err == nil && d.Waiting.Chosen > 0 {
		d.Again, err = d.handledBefore(ctx, d.On, d.Want)
	}
	return err
}

func (d *Durable) subjects() (list []string) {
	for _, p := range d.cfg.Patterns() {
		list = append(list, p.Subject)
	}
	return list
}

// of is the pattern of a subject that the routes want.
func (d *Durable) of(subject string) Pattern {
	for _, p := range d.cfg.Patterns() {
		if p.Subject == subject {
			return p
		}
	}
	return Pattern{Subject: subject, Log: d.cfg.Log}
}

// Judge compares a durable with what it should be. One that relay made is for the routes that have been configured on it before as well, unless only
// those of this configuration are to count.
func (d *Durable) Judge(have jetstream.ConsumerConfig, stream jetstream.Stream, which provision.Routes) provision.Comparison {
	return d.judge(d.cfg.Provided(), have, stream, which)
}

// JudgeToUse is Judge for a durable that is about to be used: a reload changes the ack wait that a route had here before. At a start nobody has said
// which of two is right, and another instance may use the other one.
func (d *Durable) JudgeToUse(have jetstream.ConsumerConfig, stream jetstream.Stream) provision.Comparison {
	p, which := d.cfg.Provided(), provision.Ever
	p.FormerAckWait = d.cfg.FormerAckWait(have.AckWait)
	if d.cfg.Adopt {
		which = provision.Only
	}
	return d.judge(p, have, stream, which)
}

func (d *Durable) judge(p provision.Durable, have jetstream.ConsumerConfig, stream jetstream.Stream, which provision.Routes) provision.Comparison {
	return p.Judge(have, provision.Stream{Subjects: stream.CachedInfo().Config.Subjects, Unknown: d.cfg.Unknown.Load()}, which)
}

// mayMake tells whether the durable can be made. When messages are waiting already, where it starts must have been chosen.
func (d *Durable) mayMake(ctx context.Context, stream jetstream.Stream, want jetstream.ConsumerConfig) (Waiting, error) {
	if d.cfg.Due {
		return Waiting{}, nil
	}
	if err := d.mayShareQueue(ctx, stream, want); err != nil {
		return Waiting{}, err
	}
	w, err := d.countWaiting(ctx, stream, want)
	if err == nil && w.All > 0 && d.cfg.Start().Policy == "" {
		err = fmt.Errorf(
			"start: stream %s already holds %d messages for %s, and durable %s does not exist yet: say where it begins (start: all, new, {since: <time>} or {seq: <n>})",
			d.cfg.Stream, w.All, strings.Join(d.subjects(), ", "), d.cfg.Durable)
	}
	return w, err
}
