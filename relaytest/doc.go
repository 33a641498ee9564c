// Package relaytest is for tests of programs that embed relay. It has two parts.
//
// A handler needs no server. [Msg] and [JSON] build a message, and [Handle] gives it to the handler and tells the verdict:
//
//	relaytest.Handle(t, handler, relaytest.Msg("orders.eu", `{"id":1}`)).Want(consumer.VerdictAck)
//
// Nothing of it waits for anything but the handler, so that it works in a bubble of testing/synctest, too.
//
// A route needs one. [Start] runs routes on a NATS server inside the test's process, which stores in t.TempDir() and is gone when
// the test ends. [Relay.Publish] publishes a message, and [Sent.Wait] waits until relay is through with it:
//
//	r := relaytest.Start(t, consumer.Config{}, route)
//	r.Publish("orders.eu", `{"id":1}`).Want(relaytest.Done)
//
// The package imports nats-server: import it in tests only.
package relaytest
