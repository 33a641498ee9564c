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
//
// # Where attempts are counted
//
// JetStream's delivery count is not an attempt count: prefetch, drains and lost leases raise it. The attempts of a message
// that failed are kept in a key-value bucket ([Records]) by stream, durable, the time the durable was made, and sequence,
// written and confirmed before the NAK. A message that never failed costs no write.
//
// # One count for a message
//
// A parked message is a copy with a count of its own, in its headers. Its former delivery may come again, when the ack was lost with the
// instance or with the leader. So a message may have several deliveries with different counts. The greater count wins wherever two meet:
//
//   - Parked. [RetryStream.Park] stores a copy on the condition that the last copy of the message is the delivery whose place it takes, or that
//     there is none. The server checks that in one step, so it does not matter whether a schedule fires meanwhile. When it refuses or does not
//     answer, its leader is asked what is there. A replay counts as more than what came before it.
//   - Recorded. [Records] keep the greater count, by compare-and-set. A record is deleted when the server has confirmed the ack.
//   - After a failure. A delivery that came again although no record says that it failed the time before asks for a copy ([RetryStream.Ahead])
//     and then for its dead letter. If there is one, it is acknowledged; otherwise it would go on beside the copy, from its lower count. It asks
//     after the attempt: what comes again after the death of an instance was mostly not settled, and thousands that succeed cost no question.
//     So a lost ack costs one start.
//
// The next copy is stored before the delivery of the one before is acknowledged. So the retry stream has a copy of a message from when it is
// parked until it is done or dead.
package ack
