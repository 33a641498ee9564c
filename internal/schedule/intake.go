package schedule

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/ownstream"
	"github.com/relaymq/relay/internal/removal"
	"github.com/relaymq/relay/internal/transient"
)

// errFull says that no more may wait.
var errFull = errors.New("no more delayed messages may wait (later.max_bytes, later.max_msgs)")

// errUnfit says that a message of the intake can never wait.
var errUnfit = errors.New("the message cannot be published later")

// fill is how much of its bounds a stream uses.
type fill struct {
	stream      string
	msgs, bytes int64
	ratio       float64 // of the bound that is nearer
}

// fills looks at both streams.
func (l *Later) fills(ctx context.Context) (list []fill, err error) {
	for _, bound := range []struct {
		name  string
		bytes int64
	}{{l.name, l.limits.MaxBytes}, {l.intake, l.limits.intakeBytes()}} {
		s, err := l.js.Stream(ctx, bound.name)
		if err != nil {
			return nil, err
		}
		st := s.CachedInfo().State
		f := fill{stream: bound.name, msgs: int64(st.Msgs), bytes: int64(st.Bytes)}
		f.ratio = max(float64(f.msgs)/float64(l.limits.MaxMsgs), float64(f.bytes)/float64(bound.bytes))
		list = append(list, f)
	}
	return list, nil
}

// entry is a message of the intake.
type entry struct {
	subject  string
	sequence uint64
	stored   time.Time
	header   nats.Header
	data     []byte
}

// from names the entry for as long as anybody may move it. The time tells it from one of a stream that was made anew.
func (e entry) from() string { return fmt.Sprintf("%d-%d", e.sequence, e.stored.UnixNano()) }

// move stores a message of the intake where it waits. Of several of the same id and subject the one that was stored last in the intake
// wins, whoever moves them and however often. The error is errUnfit when no try can succeed.
func (l *Later) move(ctx context.Context, e entry) error {
	id, subj, found := strings.Cut(strings.TrimPrefix(e.subject, l.service+underIn), ".")
	if !found {
		return fmt.Errorf("%w: its subject names no id", errUnfit)
	}
	if err := ValidateID(id); err != nil {
		return fmt.Errorf("%w: id: %w", errUnfit, err)
	}
	if err := ValidateSubject(l.service, subj, l.own...); err != nil {
		return fmt.Errorf("%w: subject: %w", errUnfit, err)
	}
	due, err := time.Parse(time.RFC3339Nano, e.header.Get(headerAt))
	if err != nil {
		return fmt.Errorf("%w: header %s must be a time such as 2026-11-30T07:00:00Z", errUnfit, headerAt)
	}
	if due.Sub(e.stored) > l.limits.MaxAge {
		return fmt.Errorf("%w: it is due in more than %v (later.max_age)", errUnfit, l.limits.MaxAge)
	}
	h := nats.Header{}
	for name, values := range e.header {
		h[name] = values
	}
	h[headerFrom] = []string{e.from()}
	w := l.scheduled(id, subj, due, h, e.data)
	stream, err := l.js.Stream(ctx, l.name)
	if err != nil {
		return err
	}
	for {
		var revision uint64
		have, err := stream.GetLastMsgForSubject(ctx, w.Subject)
		switch {
		case err == nil && e.older(have.Header.Get(headerFrom)):
			return nil
		case err == nil:
			revision = have.Sequence
		case !errors.Is(err, jetstream.ErrMsgNotFound):
			return err
		}
		stored, err := l.js.PublishMsg(ctx, w, jetstream.WithExpectStream(l.name), jetstream.WithMsgID(e.from()), jetstream.WithExpectLastSequencePerSubject(revision))
		var api *jetstream.APIError
		switch {
		case transient.Raced(err) && ctx.Err() == nil:
			continue // it fired, or another one took its place
		case errors.Is(err, nats.ErrMaxPayload), errors.As(err, &api) && api.ErrorCode == codeHeaderTooLarge:
			return fmt.Errorf("%w: with its headers it is larger than the server takes", errUnfit)
		case errors.Is(err, nats.ErrBadHeaderMsg):
			return fmt.Errorf("%w: a header has a name that cannot be sent", errUnfit)
		case errors.As(err, &api) && (api.ErrorCode == codeScheduleInvalid || api.ErrorCode == codeScheduleTarget):
			return fmt.Errorf("%w: the server refuses its time or its subject: %w", errUnfit, err)
		case err != nil || stored.Duplicate:
			return err
		}
		return l.takenBack(ctx, e, stream, stored.Sequence)
	}
}

// takenBack removes what was just stored if it was taken back meanwhile: then it is not in the intake any more. [Later.Remove] looks there first, so
// that one of the two sees the message. An instance whose turn was over stores nothing: what it moves is known as a duplicate.
func (l *Later) takenBack(ctx context.Context, e entry, waits jetstream.Stream, sequence uint64) error {
	intake, err := l.js.Stream(ctx, l.intake)
	if err != nil {
		return err
	}
	if _, err = intake.GetMsg(ctx, e.sequence); !errors.Is(err, jetstream.ErrMsgNotFound) {
		return err
	}
	return removal.Delete(ctx, waits, sequence) // it may have fired
}

// older tells whether the entry was stored before, or is, what waits already.
func (e entry) older(from string) bool {
	seq, at, _ := strings.Cut(from, "-")
	sequence, err := strconv.ParseUint(seq, 10, 64)
	if err != nil {
		return false // from a publisher, before there was an intake
	}
	nanos, _ := strconv.ParseInt(at, 10, 64)
	if since := time.Unix(0, nanos); !since.Equal(e.stored) {
		return since.After(e.stored)
	}
	return sequence >= e.sequence
}

// intakeDurable is the consumer of the intake.
const intakeDurable = "relay"

// take moves what comes into the intake, until something fails. One message is on its way at a time, over all instances, so that they
// are moved in the order in which they were stored.
func (r *Runner) take(ctx context.Context, l *Later) error {
	c, err := bounded(ctx, r.js, func(ctx context.Context) (jetstream.Consumer, error) {
		return r.js.CreateOrUpdateConsumer(ctx, l.intake, jetstream.ConsumerConfig{
			Durable: intakeDurable, AckPolicy: jetstream.AckExplicitPolicy, AckWait: intakeWait, MaxAckPending: 1,
		})
	})
	if err != nil {
		return err
	}
	var looked time.Time
	moved, full := 0, false
	for ctx.Err() == nil {
		err := r.fetch(ctx, c, func(m jetstream.Msg) error {
			began := time.Now()
			if full || moved >= atOnce || time.Since(looked) > time.Second {
				list, err := bounded(ctx, r.js, l.fills)
				if err != nil {
					_ = m.NakWithDelay(again)
					return err
				}
				looked, moved, full = time.Now(), 0, list[0].ratio >= 1
			}
			err := errFull
			if !full {
				moved++
				err = r.moveOne(ctx, l, m, began)
			}
			if err != nil {
				_ = m.NakWithDelay(again)
			}
			r.note(ctx, intakeTrouble, err)
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

const (
	// intakeWait is how long a message of the intake is an instance's. The others behind it wait as long when that instance is killed.
	intakeWait = 5 * time.Second
	// again is when a message of the intake is tried again.
	again = time.Second
)

// moveOne moves a message and takes it out of the intake, both confirmed.
func (r *Runner) moveOne(ctx context.Context, l *Later, m jetstream.Msg, began time.Time) error {
	meta, err := m.Metadata()
	if err != nil {
		return err
	}
	e := entry{subject: m.Subject(), sequence: meta.Sequence.Stream, stored: meta.Timestamp, header: m.Headers(), data: m.Data()}
	ctx, cancel := context.WithDeadline(ctx, began.Add(intakeWait*3/4))
	defer cancel()
	return transient.Do(ctx, r.js.Conn(), func(ctx context.Context) error {
		err := l.move(ctx, e)
		switch {
		case errors.Is(err, errUnfit):
			r.runs.WithLabelValues(DelayedName, Failed).Inc()
			r.cfg.Logger.Error("a delayed message is removed", "subject", m.Subject(), "error", err)
		case err != nil:
			return err
		}
		// Without the confirmation it comes again, and what waits tells that it was moved.
		return m.DoubleAck(ctx)
	})
}

// fillingAt is the share of a bound from which on relay warns.
const fillingAt = 0.8

// watchFill looks at the streams: at how full they are, and at their settings.
func (r *Runner) watchFill(ctx context.Context, l *Later) {
	for ctx.Err() == nil {
		list, err := bounded(ctx, r.js, l.fills)
		r.fills.Store(&list)
		for _, f := range list {
			var filling error
			if f.ratio >= fillingAt {
				filling = fmt.Errorf("stream %s holds %d messages and %d bytes: %.0f %% of what it may (later.max_msgs, later.max_bytes); at 100 %% publishers get errors",
					f.stream, f.msgs, f.bytes, 100*f.ratio)
			}
			r.note(ctx, fillTrouble+f.stream, filling)
		}
		if err == nil {
			_, err = bounded(ctx, r.js, func(ctx context.Context) (struct{}, error) {
				return struct{}{}, l.check(ctx, r.cfg.Replicas, r.cfg.Logger)
			})
			var fault *ownstream.Error
			if err == nil || errors.As(err, &fault) {
				r.note(ctx, "the settings of the streams of delayed messages", err)
			}
		}
		if err != nil {
			return // opened anew, if it can be
		}
		sleep(ctx, lookAtFill)
	}
}
