// Package dlq keeps the messages that could not be handled: it stores them once, shows them, and hands them back.
//
// # The entry
//
// An entry is a message in the stream <SERVICE>_DLQ, on
//
//	<prefix>.<route>.<stream>.<sequence>-<origin ns>-<replay count>.<original subject>
//
// which is unique for each failure of a message: a message that is replayed and fails again has a higher replay count. A durable
// that has not the name of its route adds a mark behind the count, since two durables of a route may have the same messages. An
// original subject that cannot be part of another one ends as _; its exact bytes are in a header. The headers are those
// of [ack.Wrap] (origin, counts, the last error, every original header) with the reason, stack and instance; the body is
// the original one, byte for byte.
//
// # Once
//
// [Store.Put] publishes on the condition that the subject holds no message, which the server keeps for as long as the
// entry is there, long after any dedupe window. A PubAck that names the stream is a proof. Anything else (a refusal, a
// time-out, a lost connection) proves nothing: Put reads the subject back from the stream's leader, never from a replica
// that may lag, and compares the origin. Only a match is success. A caller acknowledges the original after Put returned
// nil, and not before; until then JetStream still has the original, so a Put that failed is simply tried again.
//
// # Large messages
//
// What does not fit into a message any more with relay's own headers (max_payload, or the server's 64 KiB of headers)
// keeps its body and its original headers as one object in the bucket <SERVICE>_DLQ_BODIES, stored before the entry, which
// then names it with its SHA-256. An object belongs to one entry subject, and so to one due subject of a replay, both of
// which it carries as metadata. Its name is a hash of the entry's subject and of the content: object names become subjects
// in base64, and the subjects of entries would break the server's control line of 4,096 bytes.
//
// An object lives as long as its entry, or the due message that a replay made from it: due messages too name the object,
// and their consumer fetches it with [Store.Body]. [Store.Sweep] removes an object that neither refers to. Four rules make
// that safe without locks:
//
//   - Whoever is about to refer to an object has put it, or touched it (stored its description again), within the hour
//     before, and Sweep leaves young objects alone.
//   - Touching and removing are conditional on the exact description that was looked at, so that one of two rivals loses
//     and knows it.
//   - A replay publishes the due message before it removes the entry, and Sweep looks for the entry first and for the due
//     message second, so it cannot miss both.
//   - A touch by a replay leaves a mark, and [Store.Discard] leaves marked objects to Sweep.
//
// # Replay
//
// [Store.Replay] hands an entry to the route that failed, through the work queue <SERVICE>_RETRY on
// <service>.due.<route>.<stream>.<token>, so that no other consumer of the source stream sees the message again. The message id is
// made of origin and replay count: a second hand-over within the stream's dedupe window is no second message. The
// entry is removed after the hand-over is confirmed; a crash between the two leaves the entry, and its next replay
// within the window reaches nobody twice.
//
// # Bounds
//
// Nothing here runs in the background or keeps state in memory. Listing reads pages of a few MiB, by a consumer
// without acks that leaves out bodies unless they are wanted: 140,000 entries a second on a shared machine with two cores, 104,000 with
// bodies. Direct gets of batches, which always bring the bodies, do 44,000 (BenchmarkList). The age and size of the
// stream are the operator's choice; a full one refuses ([ErrFull]) or drops its oldest entries. The bucket has the same
// size limit for itself and always refuses, since dropping a body would leave an entry without one.
package dlq
