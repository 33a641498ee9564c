package schedule

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/ownstream"
	"github.com/relaymq/relay/internal/removal"
)

// Later is where delayed messages wait. It is made of two streams, because a stream with schedules lets each of its publishers remove all
// that others stored (Nats-Rollup), and forbids to refuse what is too much.
//
//	<service>.later.in.<id>.<subject>    in <SERVICE>_LATER_IN: from publishers, who may write here and nowhere else
//	<service>.later.wait.<id>.<subject>  in <SERVICE>_LATER: a schedule of the server, which an instance built
//	<service>.later.due.<id>.<subject>   in <SERVICE>_LATER: due now; an instance publishes it on <subject>
//
// A second message of the same id and subject replaces the first while that waits.
type Later struct {
	js      jetstream.JetStream
	service string
	name    string
	intake  string
	limits  Limits
	own     []string // see ValidateSubject
}

// Limits bound what waits. Zero of any means the default.
type Limits struct {
	MaxBytes int64         // of what waits; a sixteenth of that, at least 1 MiB, of what came in and was not moved
	MaxMsgs  int64         // in each of the two streams
	MaxAge   time.Duration // how far ahead a message may be due
}

// WithDefaults fills in what is zero.
func (l Limits) WithDefaults() Limits {
	l.MaxBytes = cmp.Or(l.MaxBytes, 1<<30)
	l.MaxMsgs = cmp.Or(l.MaxMsgs, 1_000_000)
	l.MaxAge = cmp.Or(l.MaxAge, 366*24*time.Hour)
	return l
}

// intakeBytes bounds the intake. The server keeps that room free for it from the start (max_bytes of a stream, nats-server v2.15.2), so that it
// is not as large as what may wait.
func (l Limits) intakeBytes() int64 { return max(l.MaxBytes/16, 1<<20) }

// LaterStream is the name of the stream in which they wait.
func LaterStream(service string) string { return strings.ToUpper(service) + "_LATER" }

// IntakeStream is the name of the stream that takes them from publishers.
func IntakeStream(service string) string { return strings.ToUpper(service) + "_LATER_IN" }

// laterWindow is the duplicate window of the stream, in which a message of the intake that is moved twice is known.
const laterWindow = 2 * time.Minute

// laterConfig has no bounds: a stream with schedules refuses to refuse new messages, and would remove old ones. Relay looks at the bounds
// before it moves a message there.
func laterConfig(service string, replicas int) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: LaterStream(service), Description: "relay: messages that are published later",
		Subjects:  []string{service + ".later.wait.>", service + ".later.due.>"},
		Retention: jetstream.WorkQueuePolicy, Storage: jetstream.FileStorage, Replicas: replicas,
		AllowMsgSchedules: true, AllowDirect: true, Duplicates: laterWindow,
	}
}

// intakeConfig allows neither schedules nor rollups nor lifetimes: the server refuses messages with their headers. Its duplicate window is
// the shortest there is: with an id that another publisher uses, too, somebody could have that one's message taken for a duplicate.
func intakeConfig(service string, replicas int, limits Limits) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: IntakeStream(service), Description: "relay: messages to publish later, as publishers sent them",
		Subjects:  []string{service + ".later.in.>"},
		Retention: jetstream.WorkQueuePolicy, Storage: jetstream.FileStorage, Replicas: replicas, Discard: jetstream.DiscardNew,
		MaxBytes: limits.intakeBytes(), MaxMsgs: limits.MaxMsgs, MaxAge: limits.MaxAge,
		AllowDirect: true, Duplicates: 100 * time.Millisecond,
	}
}

// ownStreams are all of this package: also the bucket of the runs, so that nobody else makes it first.
func ownStreams(service string, replicas int, limits Limits) []jetstream.StreamConfig {
	return []jetstream.StreamConfig{
		laterConfig(service, replicas), intakeConfig(service, replicas, limits), ownstream.Bucket(Bucket(service), max(replicas, 1), 0),
	}
}

// openLater makes the streams when they are missing, and sets them right when they are not as they have to be.
func openLater(ctx context.Context, js jetstream.JetStream, service string, replicas int, limits Limits, log *slog.Logger) (*Later, error) {
	limits = limits.WithDefaults()
	for _, want := range ownStreams(service, replicas, limits) {
		if _, err := ownstream.Ensure(ctx, js, want, log); err != nil {
			return nil, err
		}
	}
	l := AttachLater(js, service)
	l.limits = limits
	return l, nil
}

// check sets right what somebody changed since.
func (l *Later) check(ctx context.Context, replicas int, log *slog.Logger) error {
	for _, want := range ownStreams(l.service, replicas, l.limits) {
		if _, err := ownstream.Check(ctx, l.js, want, ownstream.Running, log); err != nil {
			return err
		}
	}
	return nil
}

// AttachLater is for whoever publishes. It makes nothing and asks for nothing: a running relay makes the streams.
func AttachLater(js jetstream.JetStream, service string) *Later {
	return &Later{js: js, service: service, name: LaterStream(service), intake: IntakeStream(service), limits: Limits{}.WithDefaults()}
}

// Errors of [Later.Delay].
var (
	// ErrNoIntake says that no relay made the stream that takes delayed messages.
	ErrNoIntake = errors.New("there is no stream that takes delayed messages: start relay once, which makes it")
	// ErrFull says that as many messages wait as may. Nothing was stored, and nothing that waits was lost.
	ErrFull = errors.New("as many delayed messages wait as later.max_bytes or later.max_msgs allow: nothing was stored")
)

// Delayed is a message that waits.
type Delayed struct {
	ID      string    `json:"id"`
	Subject string    `json:"subject"`
	Due     time.Time `json:"due"`
	Size    int       `json:"size"` // of its body, in bytes
	Stored  time.Time `json:"stored"`
	// Overdue says that it is due, and that no stream has taken it yet: it is tried again, a minute later at most.
	Overdue bool `json:"overdue,omitempty"`
}

// The headers that relay itself sets.
const (
	headerAt   = "Relay-Publish-At" // in the intake: when it is due, in RFC 3339
	headerFrom = "Relay-Later-From" // while it waits: the sequence and the time in the intake
)

// overhead is how much longer the headers of a message become that waits, beside its subject.
const overhead = 512

// Delay stores m to be published on its subject at due, and returns when the server has it. A message of the same id and subject
// that still waits is replaced. One that is due already is published at once.
func (l *Later) Delay(ctx context.Context, id string, m *nats.Msg, due time.Time) (*jetstream.PubAck, error) {
	if err := ValidateID(id); err != nil {
		return nil, fmt.Errorf("id: %w", err)
	}
	if err := ValidateSubject(l.service, m.Subject); err != nil {
		return nil, fmt.Errorf("subject: %w", err)
	}
	w := &nats.Msg{Subject: l.service + ".later.in." + id + "." + m.Subject, Header: nats.Header{}, Data: m.Data}
	for name, values := range m.Header {
		if err := ValidateHeader(name); err != nil {
			return nil, err
		}
		w.Header[name] = values
	}
	if time.Until(due) > l.limits.MaxAge {
		return nil, fmt.Errorf("due: a message may wait %v at most (later.max_age)", l.limits.MaxAge)
	}
	w.Header.Set(headerAt, due.UTC().Format(time.RFC3339Nano))
	if most := l.js.Conn().MaxPayload(); most > 0 && int64(w.Size()+len(w.Subject)+overhead) > most {
		return nil, fmt.Errorf("%w: a delayed message needs some room for its headers", nats.ErrMaxPayload)
	}
	ack, err := l.js.PublishMsg(ctx, w, jetstream.WithExpectStream(l.intake))
	var api *jetstream.APIError
	switch {
	case errors.Is(err, jetstream.ErrNoStreamResponse), errors.Is(err, nats.ErrNoResponders):
		return nil, fmt.Errorf("stream %s: %w", l.intake, ErrNoIntake)
	case errors.As(err, &api) && (api.ErrorCode == codeStoreFailed || api.ErrorCode == codeStorageExceeded || api.ErrorCode == codeInsufficientResources):
		return nil, fmt.Errorf("stream %s: %w (%w)", l.intake, ErrFull, err)
	}
	return ack, err
}

// Error codes of the server that nats.go does not name (nats-server, server/errors.json).
const (
	codeInsufficientResources jetstream.ErrorCode = 10023
	codeStorageExceeded       jetstream.ErrorCode = 10047
	codeStoreFailed           jetstream.ErrorCode = 10077 // max bytes or messages, with DiscardNew
	codeHeaderTooLarge        jetstream.ErrorCode = 10097
	codeScheduleInvalid       jetstream.ErrorCode = 10189
	codeScheduleTarget        jetstream.ErrorCode = 10190
)

// waiting reads what waits in a stream under a subject, of one id or of all (*), in the order in which it was stored, until each returns false.
func (l *Later) waiting(ctx context.Context, name, under, of string, each func(m *jetstream.RawStreamMsg, d Delayed) bool) error {
	stream, err := l.js.Stream(ctx, name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil // no relay ran
	}
	if err != nil {
		return err
	}
	last := stream.CachedInfo().State.LastSeq
	for seq := uint64(1); seq <= last; {
		m, err := stream.GetMsg(ctx, seq, jetstream.WithGetMsgSubject(l.service+under+of+".>"))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		id, subj, _ := strings.Cut(strings.TrimPrefix(m.Subject, l.service+under), ".")
		at := m.Header.Get(headerAt)
		if name == l.name {
			at = strings.TrimPrefix(m.Header.Get("Nats-Schedule"), "@at ")
		}
		due, _ := time.Parse(time.RFC3339Nano, at)
		d := Delayed{ID: id, Subject: subj, Due: due, Size: len(m.Data), Stored: m.Time}
		if under == underDue {
			d.Due, d.Overdue = m.Time, true
		}
		if m.Sequence > last || !each(m, d) {
			return nil
		}
		seq = m.Sequence + 1
	}
	return nil
}

// The subjects under which a message waits, after the service.
const (
	underWait = ".later.wait."
	underIn   = ".later.in."
	underDue  = ".later.due."
)

// List returns what waits, at most that many; more tells whether there are others.
func (l *Later) List(ctx context.Context, most int) (list []Delayed, more bool, err error) {
	return l.list(ctx, "*", most)
}

// Find returns what waits under an id, at most a hundred.
func (l *Later) Find(ctx context.Context, id string) ([]Delayed, error) {
	if err := ValidateID(id); err != nil {
		return nil, err
	}
	list, _, err := l.list(ctx, id, 100)
	return list, err
}

func (l *Later) list(ctx context.Context, of string, most int) (list []Delayed, more bool, err error) {
	type place struct{ id, subject string }
	seen := make(map[place]bool)
	add := func(_ *jetstream.RawStreamMsg, d Delayed) bool {
		at := place{d.ID, d.Subject}
		if seen[at] {
			return true
		}
		seen[at] = true
		more = len(list) == most
		if !more {
			list = append(list, d)
		}
		return !more
	}
	// In the order in which a message goes through them: what is moved meanwhile is seen in both rather than in none.
	for _, from := range [][2]string{{l.intake, underIn}, {l.name, underWait}, {l.name, underDue}} {
		if err = l.waiting(ctx, from[0], from[1], of, add); err != nil || more {
			break
		}
	}
	return list, more, err
}

// Remove takes back what waits under an id, and returns how many messages these were.
func (l *Later) Remove(ctx context.Context, id string) (int, error) {
	if err := ValidateID(id); err != nil {
		return 0, err
	}
	removed := make(map[string]bool)
	for _, from := range []struct{ stream, under string }{{l.intake, underIn}, {l.name, underWait}, {l.name, underDue}} {
		stream, err := l.js.Stream(ctx, from.stream)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			continue
		}
		if err != nil {
			return len(removed), err
		}
		if from.stream == l.intake { // what an instance has in hand is moved, and then found where it waits; what it takes from now on, see takenBack
			if err := l.inHand(ctx, stream); err != nil {
				return len(removed), err
			}
		}
		under := l.service + from.under + id + "."
		info, err := stream.Info(ctx, jetstream.WithSubjectFilter(under+">"))
		if err != nil {
			return len(removed), err
		}
		if len(info.State.Subjects) > 0 {
			if err := stream.Purge(ctx, jetstream.WithPurgeSubject(under+">")); err != nil {
				return len(removed), err
			}
		}
		for s := range info.State.Subjects {
			removed[strings.TrimPrefix(s, under)] = true
		}
	}
	return len(removed), nil
}

// inHand waits, for a moment, until what an instance has in hand of the intake is moved.
func (l *Later) inHand(ctx context.Context, intake jetstream.Stream) error {
	var at uint64
	for n := range 40 {
		c, err := intake.Consumer(ctx, intakeDurable)
		if errors.Is(err, jetstream.ErrConsumerNotFound) {
			return nil // no relay ran
		}
		if err != nil {
			return err
		}
		info := c.CachedInfo()
		if n == 0 {
			at = info.Delivered.Stream
		}
		if info.NumAckPending == 0 || info.AckFloor.Stream >= at {
			return nil
		}
		sleep(ctx, 50*time.Millisecond)
	}
	return ctx.Err()
}

// stuckAfter is how late a schedule is when the server has lost sight of it: one that was due while the storage was full never fires
// by itself, and does when it is published again.
const stuckAfter = 10 * time.Second

// tidy publishes again what is past due, and removes schedules that relay did not build: before there was an intake publishers wrote
// them, and one with @every stores messages for ever.
func (l *Later) tidy(ctx context.Context) (freed, removed int, err error) {
	stream, err := l.js.Stream(ctx, l.name)
	if err != nil {
		return 0, 0, err
	}
	before := time.Now().Add(-stuckAfter)
	var failed error
	err = l.waiting(ctx, l.name, underWait, "*", func(m *jetstream.RawStreamMsg, d Delayed) bool {
		if d.Due.IsZero() { // it comes again and again, or never
			if failed = removal.Delete(ctx, stream, m.Sequence); failed == nil {
				removed++
			}
			return failed == nil
		}
		if d.Due.After(before) && plain(m, l.service+".later.due."+d.ID+"."+d.Subject) {
			return true
		}
		w := l.scheduled(d.ID, d.Subject, d.Due, m.Header, m.Data)
		_, err := l.js.PublishMsg(ctx, w, jetstream.WithExpectStream(l.name), jetstream.WithExpectLastSequencePerSubject(m.Sequence))
		var api *jetstream.APIError
		switch {
		case err == nil:
			freed++
		case !errors.As(err, &api): // else it has fired, or was replaced
			failed = err
		}
		return failed == nil
	})
	return freed, removed, errors.Join(err, failed)
}

// plain tells whether a schedule is as relay builds them: it goes where it becomes due, and nothing else happens then.
func plain(m *jetstream.RawStreamMsg, due string) bool {
	for name := range m.Header {
		switch n := strings.ToLower(name); {
		case n == "nats-schedule-ttl", n == "nats-schedule-rollup", n == "nats-schedule-source", n == "nats-ttl":
			return false
		}
	}
	return m.Header.Get("Nats-Schedule-Target") == due
}

// scheduled is a message as it waits. Of its headers only those stay that mean nothing to the server or to relay.
func (l *Later) scheduled(id, subj string, due time.Time, h nats.Header, data []byte) *nats.Msg {
	w := &nats.Msg{Subject: l.service + underWait + id + "." + subj, Header: nats.Header{}, Data: data}
	for name, values := range h {
		if ValidateHeader(name) == nil {
			w.Header[name] = values
		}
	}
	if from := h.Get(headerFrom); from != "" {
		w.Header.Set(headerFrom, from)
	}
	// jetstream.WithScheduleAt truncates to seconds and fires early; the server takes nanoseconds.
	w.Header.Set("Nats-Schedule", "@at "+due.UTC().Format(time.RFC3339Nano))
	w.Header.Set("Nats-Schedule-Target", l.service+".later.due."+id+"."+subj)
	return w
}

// realSubject is where a due message goes, with its id. It goes by the subject on which the message waited, which the server names and
// publishers cannot: what may be delayed is then for the permissions on <service>.later.wait.> to say.
func (l *Later) realSubject(h nats.Header) (id, subj string, err error) {
	rest, ok := strings.CutPrefix(h.Get("Nats-Scheduler"), l.service+".later.wait.")
	id, subj, found := strings.Cut(rest, ".")
	if !ok || !found {
		return "", "", errors.New("the message did not come from a schedule")
	}
	if err := ValidateID(id); err != nil {
		return "", "", err
	}
	return id, subj, ValidateSubject(l.service, subj, l.own...)
}
