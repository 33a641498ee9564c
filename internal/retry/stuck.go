package retry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/ownstream"
	"github.com/relaymq/relay/internal/transient"
)

// A schedule that is due while the storage is full is lost sight of: the server marks it as being on its way, cannot store
// what it should become, and never takes the mark away (nats-server scheduler.go; measured on 2.15.2: 100 of 100 stayed
// where they were after space was freed). Published again on its subject it fires.

// stuckAfter is how late a schedule must be to count as stuck; the server fires them within a quarter of a second. One that
// is not stuck after all, or not yet due by the server's clock, keeps its time: nothing is lost by publishing it again.
const stuckAfter = 10 * time.Second

// stuckPage bounds what is read of the stream at once.
const (
	stuckPage      = 256
	stuckPageBytes = 4 << 20
	stuckPatience  = 5 * time.Second
	// stuckRest times what a page took is the pause after it: to read a million parked messages takes half a minute of the
	// server's and of relay's time, which fresh ones would miss.
	stuckRest = 100
)

// Unstick publishes the schedules again that are past due, and returns how many these were. It reads all that is parked,
// and rests most of the time; it blocks until it is through, which takes half an hour when a million are.
func (r *Stream) Unstick(ctx context.Context) (freed int, err error) {
	return r.unstick(ctx, time.Now().Add(-stuckAfter))
}

func (r *Stream) unstick(ctx context.Context, before time.Time) (freed int, err error) {
	stream, err := r.js.Stream(ctx, r.name)
	if err != nil {
		return 0, err
	}
	last := stream.CachedInfo().State.LastSeq // what is published again comes behind it
	for next := uint64(1); next > 0 && next <= last; {
		began := time.Now()
		var page []*nats.Msg
		if page, next, err = r.readFrom(ctx, r.service+".park.>", next); err != nil {
			return freed, err
		}
		took := time.Since(began)
		for _, m := range page {
			at, ok := strings.CutPrefix(m.Header.Get("Nats-Schedule"), "@at ")
			due, err := time.Parse(time.RFC3339Nano, at)
			if !ok || err != nil || due.After(before) || parkedSequence(m) > last {
				continue
			}
			again, err := r.again(ctx, m)
			if err != nil {
				return freed, err
			}
			if again {
				freed++
			}
		}
		if next > 0 && next <= last {
			select {
			case <-ctx.Done():
				return freed, ctx.Err()
			case <-time.After(stuckRest * took):
			}
		}
	}
	return freed, nil
}

// again publishes a schedule once more, unless it has fired or was replaced since it was read.
func (r *Stream) again(ctx context.Context, m *nats.Msg) (bool, error) {
	c := &nats.Msg{Subject: m.Header.Get(jetstream.SubjectHeader), Header: parkedHeader(m), Data: m.Data}
	_, err := r.js.PublishMsg(ctx, c, jetstream.WithExpectStream(r.name), jetstream.WithExpectLastSequencePerSubject(parkedSequence(m)))
	if transient.Raced(err) {
		return false, nil
	}
	return err == nil, err
}

// parkedHeader are the headers of a schedule that was read. What a direct get adds is not the message's.
func parkedHeader(m *nats.Msg) nats.Header {
	h := make(nats.Header, len(m.Header))
	for name, values := range m.Header {
		if !hasPrefixFold(name, "Nats-") || name == "Nats-Schedule" || name == "Nats-Schedule-Target" {
			h[name] = values
		}
	}
	return h
}

// parkedSequence is that of a message that was read; zero, which no message has, if it says none.
func parkedSequence(m *nats.Msg) uint64 {
	seq, _ := strconv.ParseUint(m.Header.Get(jetstream.SequenceHeader), 10, 64)
	return seq
}

// readFrom reads a page of messages from a sequence on, as direct gets answer them. Next is where to go on; zero
// means that there are no more.
func (r *Stream) readFrom(ctx context.Context, filter string, from uint64) (page []*nats.Msg, next uint64, err error) {
	request, err := json.Marshal(map[string]any{
		"seq": from, "next_by_subj": filter, "batch": stuckPage, "max_bytes": stuckPageBytes,
	})
	if err != nil {
		return nil, 0, err
	}
	nc := r.js.Conn()
	sub, err := nc.SubscribeSync(nc.NewInbox())
	if err != nil {
		return nil, 0, err
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := nc.PublishRequest(ownstream.APIPrefix(r.js)+"DIRECT.GET."+r.name, sub.Subject, request); err != nil {
		return nil, 0, err
	}
	for {
		wait, cancel := context.WithTimeout(ctx, stuckPatience)
		m, err := sub.NextMsgWithContext(wait)
		cancel()
		if err != nil {
			return nil, 0, fmt.Errorf("reading the retry stream: %w", err)
		}
		switch status := m.Header.Get("Status"); status {
		case "":
			page = append(page, m)
			continue
		case "404":
			return nil, 0, nil
		case "204": // the end of the page
			if len(page) == 0 {
				return nil, 0, nil
			}
			return page, parkedSequence(page[len(page)-1]) + 1, nil
		default:
			return nil, 0, errors.New("reading the retry stream: " + status + " " + m.Header.Get("Description"))
		}
	}
}
