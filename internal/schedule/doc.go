// Package schedule publishes messages later: once, at a time ([Later]), or again and again, by a cron line or an interval ([Runner]).
//
// A delayed message is stored in a stream of relay's own, <SERVICE>_LATER_IN, and an instance moves it to another one, <SERVICE>_LATER,
// where it waits as a message schedule of the server. When it is due, an instance publishes it on its real subject, waits for the
// confirmation, and only then removes it. The Nats-Msg-Id of what is
// published is the id of the message, so that the target's stream stores it once within its duplicate window.
//
// The runs of a [Schedule] are published by the instances themselves. What they agree on is a record in the bucket
// <SERVICE>_SCHEDULES, changed by compare-and-set only: which run is next, who publishes it now, and whether an operator paused it.
package schedule
