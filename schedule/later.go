package schedule

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/ownstream"
)

// Later is the stream in which delayed messages wait.
//
//	<service>.later.wait.<id>.<subject>  a schedule of the server; a second one of the same id and subject replaces the first
//	<service>.later.due.<id>.<subject>   due now; an instance publishes it on <subject>
type Later struct {
	js      jetstream.JetStream
	service string
	name    string
}

// LaterStream is the name of the stream.
func LaterStream(service string) string { return strings.ToUpper(service) + "_LATER" }

// laterWindow is the duplicate window of the stream, which the due messages of a schedule go through.
const laterWindow = 2 * time.Minute

func laterConfig(service string, replicas int) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: LaterStream(service), Description: "relay: messages that are published later",
		Subjects:  []string{service + ".later.wait.>", service + ".later.due.>"},
		Retention: jetstream.WorkQueuePolicy, Storage: jetstream.FileStorage, Replicas: replicas,
		AllowMsgSchedules: true, AllowDirect: true, Duplicates: laterWindow,
	}
}

// OpenLater makes the stream when it is missing, and sets it right when it is not as it has to be.
func OpenLater(ctx context.Context, js jetstream.JetStream, service string, replicas int) (*Later, error) {
	if _, err := ownstream.Ensure(ctx, js, laterConfig(service, replicas), slog.New(slog.DiscardHandler)); err != nil {
		return nil, err
	}
	return &Later{js: js, service: service, name: LaterStream(service)}, nil
}

// AttachLater is the stream as it is. The error is jetstream.ErrStreamNotFound when nothing was ever delayed.
func AttachLater(ctx context.Context, js jetstream.JetStream, service string) (*Later, error) {
	if _, err := js.Stream(ctx, LaterStream(service)); err != nil {
		return nil, err
	}
	return &Later{js: js, service: service, name: LaterStream(service)}, nil
}

// Delayed is a message that waits.
type Delayed struct {
	ID      string    `json:"id"`
	Subject string    `json:"subject"`
	Due     time.Time `json:"due"`
	Size    int       `json:"size"` // of its body, in bytes
	Stored  time.Time `json:"stored"`
}

// Delay stores m to be published on its subject at due, and returns when the server has it. A message of the same id and subject
// that still waits is replaced. One that is due already is published at once.
func (l *Later) Delay(ctx context.Context, id string, m *nats.Msg, due time.Time) (*jetstream.PubAck, error) {
	if err := ValidateID(id); err != nil {
		return nil, fmt.Errorf("id: %w", err)
	}
	if err := ValidateSubject(l.service, m.Subject); err != nil {
		return nil, fmt.Errorf("subject: %w", err)
	}
	w := &nats.Msg{Subject: l.service + ".later.wait." + id + "." + m.Subject, Header: nats.Header{}, Data: m.Data}
	for name, values := range m.Header {
		if err := ValidateHeader(name); err != nil {
			return nil, err
		}
		w.Header[name] = values
	}
	// jetstream.WithScheduleAt truncates to seconds and fires early; the server takes nanoseconds.
	w.Header.Set("Nats-Schedule", "@at "+due.UTC().Format(time.RFC3339Nano))
	w.Header.Set("Nats-Schedule-Target", l.service+".later.due."+id+"."+m.Subject)
	return l.js.PublishMsg(ctx, w, jetstream.WithExpectStream(l.name))
}

// waiting reads what waits, in the order in which it was stored, until each returns false.
func (l *Later) waiting(ctx context.Context, each func(m *jetstream.RawStreamMsg, d Delayed) bool) error {
	stream, err := l.js.Stream(ctx, l.name)
	if err != nil {
		return err
	}
	last := stream.CachedInfo().State.LastSeq
	for seq := uint64(1); seq <= last; {
		m, err := stream.GetMsg(ctx, seq, jetstream.WithGetMsgSubject(l.service+".later.wait.>"))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		id, subj, _ := strings.Cut(strings.TrimPrefix(m.Subject, l.service+".later.wait."), ".")
		due, _ := time.Parse(time.RFC3339Nano, strings.TrimPrefix(m.Header.Get("Nats-Schedule"), "@at "))
		if m.Sequence > last || !each(m, Delayed{ID: id, Subject: subj, Due: due, Size: len(m.Data), Stored: m.Time}) {
			return nil
		}
		seq = m.Sequence + 1
	}
	return nil
}

// List returns what waits, at most that many; more tells whether there are others.
func (l *Later) List(ctx context.Context, most int) (list []Delayed, more bool, err error) {
	err = l.waiting(ctx, func(_ *jetstream.RawStreamMsg, d Delayed) bool {
		more = len(list) == most
		if !more {
			list = append(list, d)
		}
		return !more
	})
	return list, more, err
}

// Remove takes back what waits under an id, and returns how many messages these were.
func (l *Later) Remove(ctx context.Context, id string) (n int, err error) {
	if err := ValidateID(id); err != nil {
		return 0, err
	}
	stream, err := l.js.Stream(ctx, l.name)
	if err != nil {
		return 0, err
	}
	filter := l.service + ".later.wait." + id + ".>"
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(filter))
	if err != nil || len(info.State.Subjects) == 0 {
		return 0, err
	}
	return len(info.State.Subjects), stream.Purge(ctx, jetstream.WithPurgeSubject(filter))
}

// stuckAfter is how late a schedule is when the server has lost sight of it: one that was due while the storage was full never fires
// by itself, and does when it is published again.
const stuckAfter = 10 * time.Second

// unstick publishes again what is past due.
func (l *Later) unstick(ctx context.Context) (freed int, err error) {
	before := time.Now().Add(-stuckAfter)
	var failed error
	err = l.waiting(ctx, func(m *jetstream.RawStreamMsg, d Delayed) bool {
		if d.Due.IsZero() || d.Due.After(before) {
			return true
		}
		_, err := l.js.PublishMsg(ctx, &nats.Msg{Subject: m.Subject, Header: m.Header, Data: m.Data},
			jetstream.WithExpectStream(l.name), jetstream.WithExpectLastSequencePerSubject(m.Sequence))
		var api *jetstream.APIError
		switch {
		case err == nil:
			freed++
		case !errors.As(err, &api): // else it has fired, or was replaced
			failed = err
		}
		return failed == nil
	})
	return freed, errors.Join(err, failed)
}

// realSubject is where a due message goes, with its id. It goes by the subject on which the message waited, which the server names and
// publishers cannot: what may be delayed is then for the permissions on <service>.later.wait.> to say.
func (l *Later) realSubject(h nats.Header) (id, subj string, err error) {
	rest, ok := strings.CutPrefix(h.Get("Nats-Scheduler"), l.service+".later.wait.")
	id, subj, found := strings.Cut(rest, ".")
	if !ok || !found {
		return "", "", errors.New("it did not come from a schedule")
	}
	if err := ValidateID(id); err != nil {
		return "", "", err
	}
	return id, subj, ValidateSubject(l.service, subj)
}
