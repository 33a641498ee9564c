package consumer

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/relaymq/relay/consumer/internal/usercode"
	"github.com/relaymq/relay/internal/retry"
	"github.com/relaymq/relay/supervisor"
)

// declined is an error type as handlers have them: its methods do not expect to be called on nothing.
type declined struct{ code string }

func (d *declined) Error() string { return "declined: " + d.code }

type faults []error

func (f faults) Error() string { return f[0].Error() }

// hostile is an error whose methods do what each is told.
type hostile struct{ text, unwrap, is func() }

func (h hostile) Error() string { h.text(); return "hostile" }
func (h hostile) Unwrap() error { h.unwrap(); return nil }
func (h hostile) Is(error) bool { h.is(); return false }
func (h hostile) As(any) bool   { h.is(); return false }

func nothing() {}
func panics()  { panic(badError{}) }

func TestVerdictOf_foreignErrors(t *testing.T) {
	const isRetry = "retry"
	var none *declined
	for name, c := range map[string]struct {
		err  error
		kind string
		text string
	}{
		"a plain error":                   {errors.New("down"), isRetry, "down"},
		"a verdict, wrapped":              {fmt.Errorf("order 7: %w", Dead(errors.New("bad"))), "dead", "order 7: bad"},
		"a typed nil":                     {none, isRetry, "handler returned a nil *consumer.declined as error"},
		"a nil slice":                     {faults(nil), isRetry, "handler returned a nil consumer.faults as error"},
		"an empty slice":                  {faults{}, isRetry, "handler returned an error of type consumer.faults whose Error method failed: panic: runtime error: index out of range [0] with length 0"},
		"a nil verdict":                   {(*usercode.Carrier)(nil), isRetry, "handler returned a nil *usercode.Carrier as error"},
		"Dead of a typed nil":             {Dead(none), "dead", "handler returned a nil *consumer.declined as error"},
		"StopChild of a typed nil":        {StopChild(none), "ack", "handler returned a nil *consumer.declined as error"},
		"FailRoute of a typed nil":        {FailRoute(none), isRetry, "handler returned a nil *consumer.declined as error"},
		"Dead of nil":                     {Dead(nil), "dead", "dead"},
		"a text that panics":              {hostile{panics, nothing, nothing}, isRetry, "handler returned an error of type consumer.hostile whose Error method failed: panic of type consumer.badError"},
		"an Unwrap that panics":           {hostile{nothing, panics, nothing}, isRetry, "hostile"},
		"an Is that panics":               {hostile{nothing, nothing, panics}, isRetry, "hostile"},
		"Dead of an error that panics":    {Dead(hostile{panics, panics, panics}), "dead", "handler returned an error of type consumer.hostile whose Error method failed: panic of type consumer.badError"},
		"control bytes, once, and cut":    {errors.New("a\x1b[31m\r\nb\x00" + strings.Repeat("x", 1<<20)), isRetry, "a [31m  b xxx"},
		"a text that is no UTF-8 and cut": {errors.New(strings.Repeat("\xff", 3*retry.MaxErrorLen)), isRetry, "\uFFFD"},
	} {
		t.Run(name, func(t *testing.T) {
			v, _ := usercode.VerdictOf(c.err)
			if v.Kind.String() != c.kind {
				t.Errorf("%v, want %v", v.Kind, c.kind)
			}
			if _, plain := v.Err.(usercode.Error); !plain {
				t.Errorf("%T goes on", v.Err)
			}
			if got := v.Err.Error(); !strings.HasPrefix(got, c.text) || len(got) > retry.MaxErrorLen || strings.ContainsAny(got, "\x00\x1b\r\n") {
				t.Errorf("%.200q (%d bytes), want %q", got, len(got), c.text)
			}
		})
	}
	for _, err := range []error{context.DeadlineExceeded, RetryIn(time.Second, fmt.Errorf("ask: %w", context.DeadlineExceeded))} {
		if _, timedOut := usercode.VerdictOf(err); !timedOut {
			t.Errorf("%v is no timeout", err)
		}
	}
}

// The text of a typed nil was asked for where nobody recovered: one message ended the process, again at each start.
func TestRelay_regressionATypedNilErrorEndsTheProcess(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	bad := map[string]func() error{
		"orders.nil":     func() error { var none *declined; return none },
		"orders.panics":  func() error { return hostile{panics, panics, panics} },
		"orders.goexit":  func() error { return hostile{runtime.Goexit, nothing, nothing} },
		"orders.panic":   func() error { panic(hostile{panics, panics, panics}) },
		"orders.deadnil": func() error { var none *declined; return Dead(none) },
	}
	for subject := range bad {
		w.publish(subject, 1)
	}
	w.publish("orders.good", 1)
	quick := supervisor.Backoff{Policy: supervisor.Constant, Min: time.Millisecond, Max: time.Millisecond}
	good := newLedger()
	_, stop := w.start(Config{Logger: quiet}, Route{
		Name: "billing", Subjects: []string{"orders.>"}, Start: Start{Policy: "all"},
		Retry: Retry{MaxAttempts: 2, Backoff: quick}, Supervisor: supervisor.Config{Restart: quick},
		Handler: HandlerFunc(func(_ context.Context, m *Msg) error {
			if f := bad[m.Subject]; f != nil {
				return f()
			}
			good.note(m)
			return nil
		}),
	})
	w.eventually("all but the good one are dead letters", func() bool { return good.len() == 1 && len(w.deadLetters()) == len(bad) })
	for _, e := range w.deadLetters() {
		if e.LastError == "" {
			t.Errorf("%s: no text", e.Subject)
		}
		if e.Subject == "orders.nil" && e.LastError != "handler returned a nil *consumer.declined as error" {
			t.Errorf("%s: %q", e.Subject, e.LastError)
		}
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// The child's number and its key are logged with why it did not start.
func TestRelay_factoriesThatReturnATypedNil(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.publish("orders.1", 1)
	made, good := 0, newLedger()
	quick := supervisor.Backoff{Policy: supervisor.Constant, Min: time.Millisecond, Max: time.Millisecond}
	_, stop := w.start(Config{Logger: quiet}, Route{
		Name: "billing", Subjects: []string{"orders.>"}, Start: Start{Policy: "all"},
		Supervisor: supervisor.Config{Restart: quick},
		Factory: func(string) (Handler, error) {
			if made++; made == 1 { // one key: one after the other
				var none *declined
				return nil, none
			}
			return HandlerFunc(func(_ context.Context, m *Msg) error { good.note(m); return nil }), nil
		},
	})
	w.eventually("the second child handles it", func() bool { return good.len() == 1 })
	if err := stop(); err != nil {
		t.Error(err)
	}
}
