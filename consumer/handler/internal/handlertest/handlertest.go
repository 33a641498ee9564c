// Package handlertest is what the tests of the handlers share.
package handlertest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/internal/supervise"
)

// Verdict is what relay understands of what a handler returned, with the error as it is.
func Verdict(err error) supervise.Verdict {
	v := consumer.VerdictOf(err)
	return supervise.Verdict{
		Kind: supervise.Kind(v.Kind), Err: err, Delay: v.Delay, Pause: v.Pause, NotStarted: v.NotStarted, NoAnswer: v.NoAnswer,
		StopChild: v.StopChild, Crashed: v.Crashed, FailRoute: v.FailRoute, Suspend: v.Suspend,
	}
}

// What a verdict can be, for [Want].
var (
	Ack        = supervise.Verdict{Kind: supervise.Ack}
	Retry      = supervise.Verdict{Kind: supervise.Retry}
	Dead       = supervise.Verdict{Kind: supervise.Dead}
	NotStarted = supervise.Verdict{Kind: supervise.Retry, NotStarted: true}
	NoAnswer   = supervise.Verdict{Kind: supervise.Retry, NoAnswer: true}
	Crashed    = supervise.Verdict{Kind: supervise.Retry, Crashed: true}
	FailRoute  = supervise.Verdict{Kind: supervise.Retry, NotStarted: true, FailRoute: true}
)

// Want reports whether err is exactly the verdict want, and its text holds all of texts.
func Want(t testing.TB, err error, want supervise.Verdict, texts ...string) bool {
	t.Helper()
	got := Verdict(err)
	reason := got.Err
	got.Err = nil
	if got != want {
		t.Errorf("verdict %+v of %v, want %+v", got, reason, want)
		return false
	}
	for _, text := range texts {
		if !strings.Contains(fmt.Sprint(err), text) {
			t.Errorf("error %v, want %q in it", err, text)
			return false
		}
	}
	return true
}

// Message is a message that has everything.
func Message(subject string, data []byte) *consumer.Msg {
	return &consumer.Msg{
		ID: "ORDERS~billing~42~1", Route: "billing", Subject: subject, Data: data, Attempt: 3,
		Stream: "ORDERS", Consumer: "billing", Sequence: 42, Time: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC),
		Replay: 1, Deadline: time.Date(2026, 1, 2, 3, 4, 35, 0, time.UTC),
	}
}
