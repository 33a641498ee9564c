// Package ack owns the deliveries of JetStream durables: from the arrival of a message, with its lease, to the one
// settlement that ends it.
//
// # Sessions
//
// A [Session] belongs to one durable on one connection. Whoever pulls hands it each arriving message ([Session.Receive])
// and each other message on the session's inbox ([Session.Reply]), in the order of the wire, and runs it ([Session.Run]).
// All its state is under one lock, held for a few lines and never while sending.
//
//	                  ┌──────────────────────── Session ───────────────────────┐
//	wire ── Receive ──┤ live ── Ack ──────────────▶ unconfirmed ── Reply ─▶ done │
//	                  │   └──── Nak ── burst ─────▶ unconfirmed ── Reply ─▶ done │
//	                  └─────────────────────────────────────────────────────────┘
//
// # Settling once, confirmed
//
// A delivery is claimed first and sent second; a second settlement is [ErrSettled] and sends nothing. NAKs carry a reply
// subject under the session's inbox, and so does one ack at a time; nobody waits for the answer, which is matched when it
// comes. The answer to an ack also confirms the acks that were sent before it on the same connection, for the server takes
// them in order; see acks.go for when it does not. The last acks before a pause are confirmed by the next tick. What is
// still unconfirmed after two seconds, after a reconnect or after a change of leader is sent again, because such a change
// drops queued acks without any disconnect (nats-server consumer.go, the inbound ack queue is drained). It is not sent
// again when stream or consumer were made anew meanwhile: sequences start over there, and an old ack would settle a
// different message with the same sequence. Then the whole session is abandoned. A NAK whose due is over is sent again only if it has certainly not been
// taken, for the message may be with another instance by then. A redelivery of a message whose success is unconfirmed is
// acknowledged with its new reply subject and not handed out.
//
// # Leases
//
// JetStream gives a delivery to somebody else after AckWait. While one is live the session extends it (+WPI) every third
// of AckWait, from one timer. Its age counts from the last proof of contact before the delivery, which is the time
// something was sent whose answer arrived earlier on the same wire: after a stall of the link, deliveries arrive that
// were sent long ago. At AckWait of age a delivery is fenced, for good: a success may still be acknowledged, but neither a
// NAK nor a dead letter may come from here, because another instance may be at it. An answer to a +WPI that comes later
// does not bring the lease back; the server takes a +WPI from anybody.
//
// # NAKs leave in bursts
//
// Each NAK-with-delay resets the one redelivery timer of the consumer to 10 ms, so NAKs that follow each other faster
// than that hold back every redelivery of the durable for as long as they last. A session therefore sends its NAKs in
// one burst every 100 ms; each carries what is then left of its delay. While the server looks for what is due after such a
// burst, acks are kept back for some milliseconds, if more messages are outstanding than it looks through undisturbed: an
// ack that arrives meanwhile has it give up for 100 ms.
package ack
