package main

import (
	"testing"

	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/relaytest"
)

func TestCharge(t *testing.T) {
	h := consumer.JSON(charge)
	relaytest.Handle(t, h, relaytest.JSON("orders.eu", Order{ID: 1, Cents: 950})).Want(consumer.VerdictAck)
	relaytest.Handle(t, h, relaytest.Msg("orders.eu", `{"ID": 2}`)).Want(consumer.VerdictDead)
}

func TestBilling(t *testing.T) {
	r := relaytest.Start(t, consumer.Config{}, billing) // with a NATS server of its own, until the test ends
	r.Publish("orders.eu", `{"ID": 1, "Cents": 950}`).Want(relaytest.Done)
	dead := r.Publish("orders.eu", `{"ID": "2"}`).Want(relaytest.DeadLettered)
	if dead.DeadLetter.Attempts != 1 {
		t.Errorf("a body that nobody can read had %d attempts", dead.DeadLetter.Attempts)
	}
}
