// Package source has the messages of one durable for the routes that share it:
//
//	Setup ── the durable is looked at, and made or changed if that is permitted
//	OpenLooked, Await ── its session begins, at the start of relay or when the server answers
//	KeepOpen ── the loop: it pulls, receives and admits messages, until relay drains
//	     admit ── Incoming: whose is it, what is known of it? ── Work.Enter ── its group
//	     watchdog ── is the durable still the same, and does it give all that waits?
//	     reopen ── it was deleted and made again: another Source takes over
//
// What a source needs of a [Route] it gets with it. What becomes of a message that has entered is no matter of the source; it only has what was
// forgotten with it (records, memory) used again. What needs more than a few lines is in a room of its own (pulls, watchdog, catchup, takeover,
// strays, gaps), and here is how these work together.
package source
