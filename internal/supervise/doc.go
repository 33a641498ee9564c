// Package supervise decides which message of a route may start, and what a handler's end means for its key and its route.
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
// Each state is a type of this name, in a file of this name, with what belongs to it and to no other state (a [stopped] key
// has nothing, and is beside [suspended]); what they have in common is [keyState]. A key changes its state through one
// method, move. What leads from one state to another (a stop, a trip, a wait) is in stops.go.
//
// A panic is a stop of the child. Its other runs are cancelled and spend no attempt, a fresh child is made after the
// restart backoff, and gets one message as a probe. Making a child takes a slot, and as long as an attempt may. An error is
// a failure of one message: the key flows on, unless failures follow each other without a success (a trip).
//
// # The route
//
// When every message has a subject of its own, no key would ever see an outage; so when nearly all of the last
// completions failed, over several keys ([evidence]), the whole route is in doubt. It asks messages whether all is well again, at a
// pace (asking.go), and flows with the first success. Its states are [routeFlowing], [routeWaiting] and [routeProbing].
//
// # Who waits where
//
//	window   messages that may start as soon as a slot is free; bounded by how fast the handlers are, and the reason why
//	         the pull loop asks for no more ([Group.Free])
//	stash    messages whose key waits, or is stalled; bounded by count and bytes over all keys, never in the way of others;
//	         when it is full the key idle longest gives its oldest message back
//	aside    messages that were given back because something else waits, and are called back when that is over (aside.go)
//	later    messages of the stash whose own delay is not over
//	outside  sequences of an ordered key that left and have not come again; nothing of the key overtakes them
//
// # The lock
//
// All state is under one lock, held for a few lines. Only locking gives a [turn], and whatever needs the lock is a method of
// it, or of a part and gets it, so nothing can be called without. A turn has one time. What has to be told to others (settlements,
// events, calls) is gathered in it and done when the lock is released. A part that needs these has the turn's [moment]. There is one timer for everything that waits for time ([alarm]).
//
// # The parts
//
// A [Group] consists of parts that can be read one by one. They count and queue by themselves. A method that needs
// another part, too, has the turn as its first parameter and reaches the other part through it. What belongs to no part, such as the place
// of a message that arrives, is a method of the turn.
//
//	window    what may start at once, and how much more to ask for
//	stash     what waits, its bounds, and who gives back first
//	slots     what runs or is being made, which key is next, and how many slots it may hold. At most half are for what failed
//	          before (retries), a quarter for what hung (hangs), and few at first when the route flows again (ramp)
//	nursery   the children of keys: made, idle, ended. birth is the making of one
//	route     whether anything starts at all
//	aside     what was given back and is called back. wary says which messages those are while nearly all fail
//	order     for routes whose keys keep the order of the stream: what they wait for is outside, or behind the gate
//	fallback  the second handler, for messages that wait or have no attempts left, and the messages that it has
//	alarm     the timer, and the keys that want attention at a time
//	list      the lists and queues that all of these are made of
//
// # The way of a message
//
//	Deliver     intake.go   admit finds its place: settled at once, the window, or the stash
//	startAll    slots.go    wakes one goroutine, if there is a slot and a key that is ready
//	next        slots.go    the state of the route says who is next; while it flows, the key whose turn it is. The state of the
//	                        key chooses the message, and start gives it a slot and a child
//	attempt     run.go      calls Work.Do, without the lock, and catches what it throws; hang.go ends what does not return
//	complete    judge.go    run.end frees the slot, run.judge tells message, key and route what the end means, and the goroutine
//	                        takes the next message in the same turn
//	unlock      turn.go     Work.Settle: done, given back (giveback.go), to be retried, or dead
package supervise
