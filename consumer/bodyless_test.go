package consumer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/internal/retry"
	"github.com/relaymq/relay/internal/supervise"
)

// With headers_only set on a durable, what is not for a handler came without its body, and was stored like that.
func TestStrays_regressionABodylessMessageIsNotStoredEmpty(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r, _ := w.start(Config{Logger: quiet}, Route{Name: "billing", Subjects: []string{"orders.>"}, Handler: HandlerFunc(func(context.Context, *Msg) error { return nil })})
	good := w.info("RELAY_RETRY", "billing--ORDERS").Config
	edited := good
	edited.HeadersOnly = true
	if _, err := w.js.UpdateConsumer(t.Context(), "RELAY_RETRY", edited); err != nil {
		t.Fatal(err)
	}
	elsewhere := retry.Origin{Route: "billing", Stream: "INVOICES", Consumer: "billing", Sequence: 7, Time: time.Now(), Subject: "invoices.x"}
	for subject, header := range map[string]nats.Header{
		"relay.due.billing.ORDERS.foreign": {"Some": {"header"}},
		"relay.due.billing.ORDERS.stray":   retry.Wrap(elsewhere, nil),
	} {
		if _, err := w.js.PublishMsg(t.Context(), &nats.Msg{Subject: subject, Header: header, Data: []byte("whole")}); err != nil {
			t.Fatal(err)
		}
	}
	w.eventually("the edit is said", func() bool {
		err := r.Ready()
		return err != nil && strings.Contains(err.Error(), "headers_only")
	})
	w.eventually("nothing is asked for", func() bool { return w.info("RELAY_RETRY", "billing--ORDERS").NumWaiting == 0 })
	if n := len(w.deadLetters()) + w.kept("relay.*.billing.INVOICES.>"); n > 0 {
		t.Errorf("%d messages were stored elsewhere without their body", n)
	}
	if _, err := w.js.UpdateConsumer(t.Context(), "RELAY_RETRY", good); err != nil {
		t.Fatal(err)
	}
	w.eventually("both are where they belong", func() bool {
		return len(w.deadLetters()) == 1 && w.kept("relay.due.billing.INVOICES.>") == 1
	})
	if data := w.deadLetters()[0].Data; string(data) != "whole" {
		t.Errorf("dead letter of %q", data)
	}
	st, err := w.js.Stream(t.Context(), "RELAY_RETRY")
	if err != nil {
		t.Fatal(err)
	}
	kept, err := st.GetLastMsgForSubject(t.Context(), "relay.due.billing.INVOICES.>")
	if err != nil || string(kept.Data) != "whole" {
		t.Errorf("kept: %v, %v", kept, err)
	}
}

// The body of a message that had been removed from its stream was asked for each second, for ever.
func TestStrays_regressionABodylessMessageThatIsRemovedIsLetGo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r, _ := w.start(Config{Logger: quiet}, Route{Name: "billing", Subjects: []string{"orders.>"}, Handler: HandlerFunc(func(context.Context, *Msg) error {
		return errors.New("started without a body")
	})})
	s := r.engine.Running.Sources()[0]
	s.Pulls.Arrived() <- &nats.Msg{
		Subject: "orders.x", Header: nats.Header{"Nats-Msg-Size": {"5"}},
		Reply: fmt.Sprintf("$JS.ACK.ORDERS.billing.1.1000.1.%d.0", time.Now().UnixNano()),
	}
	w.eventually("it is let go", func() bool { return r.engine.Routes.All()[0].Count.Settled[supervise.LetGo].Load() == 1 })
}

// A replay whose headers do not name a body was looked up each second, for ever.
func TestStrays_regressionADamagedReferenceToABodyIsADeadLetter(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(Config{Logger: quiet}, Route{Name: "billing", Subjects: []string{"orders.>"}, Handler: HandlerFunc(func(context.Context, *Msg) error {
		t.Error("started without a body")
		return nil
	})})
	header := retry.Wrap(retry.Origin{Route: "billing", Stream: "ORDERS", Consumer: "billing", Sequence: 7, Time: time.Now(), Subject: "orders.x"}, nil)
	header.Set("Relay-Body", "no sum")
	if _, err := w.js.PublishMsg(t.Context(), &nats.Msg{Subject: "relay.due.billing.ORDERS.x", Header: header}); err != nil {
		t.Fatal(err)
	}
	w.eventually("it is a dead letter", func() bool { return len(w.deadLetters()) == 1 })
	if e := w.deadLetters()[0]; e.Header.Get("Relay-Body") != "no sum" || !strings.Contains(e.LastError, "Relay-Body") {
		t.Errorf("dead letter %+v", e)
	}
	w.settled("RELAY_RETRY", "billing--ORDERS")
}
