package relaytest

import (
	"context"
	"encoding/json"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/internal/retry"
)

var sequences atomic.Uint64

// Msg is a message as a handler gets it at its first attempt, with another sequence and id each time. All that a handler sees of it
// may be changed before [Handle].
func Msg(subject, body string) *consumer.Msg {
	now := time.Now()
	m := &consumer.Msg{
		Route: "test", Subject: subject, Data: []byte(body), Attempt: 1, Deadline: now.Add(30 * time.Second),
		Stream: "TEST", Consumer: "test", Sequence: sequences.Add(1), Time: now,
	}
	o := retry.Origin{Stream: m.Stream, Consumer: m.Consumer, Sequence: m.Sequence, Time: m.Time}
	m.ID = o.ID()
	return m
}

// JSON is [Msg] with v as the body, in JSON. A v that has none is a panic.
func JSON(subject string, v any) *consumer.Msg {
	body, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("relaytest: %T cannot be JSON: %v", v, err))
	}
	return Msg(subject, string(body))
}

// maxReply is how much of a reply is kept: the default of a route's caller.max_result.
const maxReply = 256 << 10

// Handled is one attempt.
type Handled struct {
	consumer.Verdict
	// Reply is what the handler gave to [consumer.Msg.Reply].
	Reply []byte

	t testing.TB
}

// Handle gives m to h once, as relay does at an attempt: with a context that ends at m.Deadline, and with somebody who wants the
// reply. It waits for the handler. A panic of the handler is a verdict, as with relay: a retry that is Crashed.
func Handle(t testing.TB, h consumer.Handler, m *consumer.Msg) Handled {
	t.Helper()
	ctx, cancel := context.WithDeadline(t.Context(), m.Deadline)
	defer cancel()
	result := consumer.RecordReply(m, maxReply)
	got := Handled{Verdict: consumer.VerdictOf(call(ctx, h, m)), t: t}
	got.Reply, _ = result.Data()
	return got
}

// call calls the handler. A panic is the error that says so.
func call(ctx context.Context, h consumer.Handler, m *consumer.Msg) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = consumer.Crashed(fmt.Errorf("panic: %v", p))
		}
	}()
	return h.Handle(ctx, m)
}

// Want fails the test when the verdict is of another kind. It returns the attempt.
func (h Handled) Want(kind consumer.VerdictKind) Handled {
	h.t.Helper()
	if h.Kind != kind {
		h.t.Errorf("the verdict is %s, want %v", say(h.Verdict), kind)
	}
	return h
}

// say is a verdict with its reason.
func say(v consumer.Verdict) string {
	text := v.Kind.String()
	if v.Crashed {
		text += " (the child crashed)"
	}
	if v.Err != nil && v.Err.Error() != text {
		text += ": " + v.Err.Error()
	}
	return text
}
