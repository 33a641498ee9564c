package schedule

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Delayed messages: the streams are made and set right, and what is due is published.

// delayed makes the streams of delayed messages, takes these in, and publishes those that are due. A stream that cannot be set right is
// not used.
func (r *Runner) delayed(ctx context.Context) {
	for ctx.Err() == nil {
		later, err := bounded(ctx, r.js, func(ctx context.Context) (*Later, error) {
			return openLater(ctx, r.js, r.cfg.Service, r.cfg.Replicas, r.cfg.Later, r.cfg.Logger)
		})
		if err == nil {
			later.own = r.cfg.Own
			err = r.serve(ctx, later)
		}
		r.note(ctx, laterTrouble, err)
		sleep(ctx, time.Second)
	}
}

// serve works on delayed messages until something fails.
func (r *Runner) serve(ctx context.Context, l *Later) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	all.Go(func() { cancel(r.take(ctx, l)) })
	all.Go(func() { cancel(r.pull(ctx, l)) })
	all.Go(func() { cancel(r.tidy(ctx, l)) })
	all.Go(func() {
		r.watchFill(ctx, l)
		cancel(nil)
	})
	all.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// tidy sets waiting messages right, now and then.
func (r *Runner) tidy(ctx context.Context, l *Later) error {
	for ctx.Err() == nil {
		freed, removed, err := l.tidy(ctx)
		if err != nil {
			return err
		}
		if removed > 0 {
			r.cfg.Logger.Warn("relay removed schedules that it did not create: they would have stored messages for ever", "count", removed)
		}
		if freed > 0 {
			r.cfg.Logger.Warn("delayed messages are stored again: the storage was full when they were due, or relay did not create them", "count", freed)
		}
		sleep(ctx, time.Hour)
	}
	return nil
}

// pull hands over what is due until something fails.
func (r *Runner) pull(ctx context.Context, l *Later) error {
	c, err := bounded(ctx, r.js, func(ctx context.Context) (jetstream.Consumer, error) {
		return r.js.CreateOrUpdateConsumer(ctx, l.name, jetstream.ConsumerConfig{
			Durable: "relay", FilterSubject: l.service + ".later.due.>", AckPolicy: jetstream.AckExplicitPolicy, AckWait: ackWait,
			MaxAckPending: -1, // those that no stream takes must not stand before the others
		})
	})
	if err != nil {
		return err
	}
	// Side by side, but for those of one subject: one that waits for its stream holds up no other.
	slots := make(chan struct{}, handedAtOnce)
	before := make(map[string]*handed) // by subject, the last one
	var handing sync.WaitGroup
	var inHand leases
	defer inHand.keep()()
	defer handing.Wait()
	for ctx.Err() == nil {
		for range atOnce { // before it asks: a message that waited for its slot here would have a lease that nobody extends
			slots <- struct{}{}
		}
		free := atOnce
		err := r.fetch(ctx, c, func(m jetstream.Msg) error {
			free--
			end := inHand.begin(m)
			_, subj, _ := l.realSubject(m.Headers())
			last, this := before[subj], &handed{through: make(chan struct{})}
			before[subj] = this
			handing.Go(func() {
				defer func() { end(); <-slots; close(this.through) }()
				if last != nil {
					<-last.through
					this.err = last.err // what did not take that one would not take this one
				}
				this.err = r.handDelayed(ctx, l, m, this.err)
			})
			return nil
		})
		for range free {
			<-slots
		}
		if err != nil {
			return err
		}
		maps.DeleteFunc(before, func(_ string, h *handed) bool {
			select {
			case <-h.through:
				return true
			default:
				return false
			}
		})
		r.note(ctx, laterTrouble, nil)
	}
	return nil
}

// leases are those of the due messages that are in hand.
type leases struct {
	mu   sync.Mutex
	held map[jetstream.Msg]struct{}
}

// begin holds the lease of a message until it is ended.
func (l *leases) begin(m jetstream.Msg) (end func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held == nil {
		l.held = make(map[jetstream.Msg]struct{})
	}
	l.held[m] = struct{}{}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.held, m)
	}
}

// keep extends them until it is stopped.
func (l *leases) keep() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var extending sync.WaitGroup
	extending.Go(func() {
		for ctx.Err() == nil {
			sleep(ctx, ackWait/3)
			l.mu.Lock()
			for m := range l.held {
				_ = m.InProgress() // it is settled, or the connection is away: then it comes again
			}
			l.mu.Unlock()
		}
	})
	return func() {
		cancel()
		extending.Wait()
	}
}

// handed is a due message on its way.
type handed struct {
	through chan struct{} // closed when it is
	err     error         // then: no stream has taken it
}

// noteFailing says how many delayed messages no stream takes, and of one why. Those of which nothing was heard for long went elsewhere.
func (r *Runner) noteFailing(ctx context.Context, where string, err error) {
	r.mu.Lock()
	if r.failing == nil {
		r.failing = make(map[string]failure)
	}
	if delete(r.failing, where); err != nil {
		r.failing[where] = failure{err, time.Now()}
	}
	maps.DeleteFunc(r.failing, func(_ string, f failure) bool { return time.Since(f.at) > 2*mostWait })
	n, example := len(r.failing), err
	for _, f := range r.failing {
		if example == nil {
			example = f.err
		}
	}
	r.mu.Unlock()
	if n > 0 {
		example = fmt.Errorf("%d of them cannot be published; each is tried again, a minute later at most; relay schedule ls lists them, and relay schedule rm removes one; for example: %w", n, example)
	}
	r.note(ctx, delayedTrouble, example)
}

// handDelayed publishes a due message on its real subject, and then removes it. It returns why no stream has taken it. With such an error
// of the one before, it is not tried.
func (r *Runner) handDelayed(ctx context.Context, l *Later, m jetstream.Msg, before error) error {
	if ctx.Err() != nil {
		_ = m.Nak()
		return before
	}
	id, subj, err := l.realSubject(m.Headers())
	if err != nil {
		r.runs.WithLabelValues(DelayedName, Failed).Inc()
		r.cfg.Logger.Error("a delayed message was removed, because it cannot be published", "subject", m.Subject(), "error", err)
		_ = m.TermWithReason(err.Error())
		return nil
	}
	out := &nats.Msg{Subject: subj, Header: nats.Header{}, Data: m.Data()}
	for name, values := range m.Headers() {
		if ValidateHeader(name) == nil {
			out.Header[name] = values
		}
	}
	failed := before
	if failed == nil {
		_, failed = bounded(ctx, r.js, func(ctx context.Context) (*jetstream.PubAck, error) { return r.hand(ctx, out, id, DelayedName) })
	}
	if failed != nil {
		err = fmt.Errorf("on subject %s, with id %s: %w", subj, id, failed)
	}
	r.noteFailing(ctx, m.Subject(), err)
	if failed != nil {
		tries := uint64(1)
		if meta, err := m.Metadata(); err == nil {
			tries = meta.NumDelivered
		}
		_ = m.NakWithDelay(min(time.Second<<min(tries, 6), mostWait))
		return failed
	}
	// Without the confirmation it comes again, and its stream knows its id.
	_, err = bounded(ctx, r.js, func(ctx context.Context) (struct{}, error) { return struct{}{}, m.DoubleAck(ctx) })
	if err != nil {
		r.cfg.Logger.Warn("a delayed message was published, but could not be removed from its stream; retrying the removal", "id", id, "error", err)
	}
	return nil
}
