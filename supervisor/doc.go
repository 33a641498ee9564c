// Package supervisor decides which message of a route may start, and what a handler's end means for its key and its route.
// It knows neither NATS nor handlers: messages come in by [Group.Deliver], run through [Work.Do], and leave by [Work.Settle].
//
// # Keys
//
// What fails together is supervised together: a key, by default the subject. A key with messages has a supervisor, which is
// its backoff state, its stash and its child, one incarnation of the handler. A finished key leaves nothing behind.
//
//	             message        stop, trip            wait over
//	(no state) ──────────▶ flowing ────────▶ waiting ──────────▶ probing
//	                        ▲  │  ▲            ▲  │                │  │
//	                        │  │  └────────────┼──┼── success ─────┘  │
//	          all done ─────┘  │               └──┼── failure, stop ──┘
//	                           │                  │
//	                           │   give up        ▼            operator
//	                           └────────────▶ suspended ◀──────────────▶ probing
//	                           │
//	                           └── clean stop under trigger failure ──▶ stopped (the next message begins anew)
//
// A panic is a stop of the child. Its other runs are cancelled and spend no attempt, a fresh child is made after the
// restart backoff, and gets one message as a probe. Making a child takes a slot, and as long as an attempt may. An error is a failure of one message: the key flows on, unless
// failures follow each other without a success (a trip). Every change goes through one function, [key.move].
//
// # The route
//
// When every message has a subject of its own, no key would ever see an outage; so when nearly all of the last
// completions failed, over several keys, the whole route waits in the same way, and asks in rounds: messages that nobody
// has judged, and one that failed before.
//
// # Who waits where
//
//	window   messages that may start as soon as a slot is free; bounded by how fast the handlers are, and the reason why
//	         the pull loop asks for no more ([Group.Free])
//	stash    messages whose key waits, or is stalled; bounded by count and bytes over all keys, never in the way of others;
//	         when it is full the key idle longest gives its oldest message back
//	later    messages of the stash whose own delay is not over
//	outside  sequences of an ordered key that left and have not come again; nothing of the key overtakes them
//
// # Locking
//
// All state is under one lock, held for a few lines. What has to be told to others (settlements, events, starts) is
// gathered meanwhile and done after it is released. There is one timer for everything that waits for time.
package supervisor
