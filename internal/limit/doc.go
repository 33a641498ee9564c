// Package limit bounds what runs at once, and how much begins in a second, over the routes of a process. It knows neither messages
// nor routes: members take places and give them back.
//
// A [Limit] has a name and buckets: one, or one for each value of a template over subjects. A bucket has so many places, so many
// starts a second, or both. Whoever begins something needs a place in several buckets, and gets all of them or none ([Places]).
//
// # Who waits
//
// A member that finds a bucket full stands in the line of that bucket, once, however much waits behind it. When there is
// room, the first in the line is offered it ([Member]), and goes to the end of the line if it wants more. A member that is not the first
// gets nothing while others stand in the line: so one route cannot keep another from a limit that both use. Nobody asks
// again and again: a place that is given back, a token that is due (one timer for each bucket) or a larger bound makes the
// offer.
//
//	Take ── room in all buckets ──────────────────▶ taken ── Free ─┐
//	  └── one is full ─▶ the line of that bucket ◀── offer ── Pass ┘
//
// # The lock
//
// All limits of a [Book] are under one lock, which is held for a few lines and never while somebody else's code runs. A
// member may hold a lock of its own while it calls; Pass, which calls members, must be called without.
package limit
