// Package retry stores what relay knows of messages that failed: how often, in a key-value bucket, and those that wait for their next attempt, in the retry
// stream.
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
//   - Parked. [Stream.Park] stores a copy on the condition that the last copy of the message is the delivery whose place it takes, or that
//     there is none. The server checks that in one step, so it does not matter whether a schedule fires meanwhile. When it refuses or does not
//     answer, its leader is asked what is there. A replay counts as more than what came before it.
//   - Recorded. [Records] keep the greater count, by compare-and-set. A record is deleted when the server has confirmed the ack.
//   - After a failure. A delivery that came again although no record says that it failed the time before asks for a copy ([Stream.Ahead])
//     and then for its dead letter. If there is one, it is acknowledged; otherwise it would go on beside the copy, from its lower count. It asks
//     after the attempt: what comes again after the death of an instance was mostly not settled, and thousands that succeed cost no question.
//     So a lost ack costs one start.
//
// The next copy is stored before the delivery of the one before is acknowledged. So the retry stream has a copy of a message from when it is
// parked until it is done or dead.
package retry
