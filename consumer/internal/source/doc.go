// Package source has the messages of one durable for the routes that share it:
//
//	Setup ── the durable is looked at, and made or changed if that is permitted
//	OpenLooked, Await ── its session begins, at the start of relay or when the server answers
//	KeepOpen ── the loop: it pulls, receives and admits messages, until relay drains
//	     admit ── Incoming: whose is it, what is known of it? ── Work.Enter ── its group
//	     watchdog ── is the durable still the same, and does it give all that waits?
//	     reopen ── it was deleted and made again: another Source takes over
//
// A [Route] says what a source needs to know of a route, and an [Instance] what all sources of an instance share. The owner of the routes decides what
// becomes of a message after Work.Enter. When that is confirmed, it has the source delete the record of the message (Forget) and use its memory again
// (Reuse). What takes more than a few lines is in a room of its own (pulls, watchdog, catchup, takeover, strays, gaps). This package puts them together.
package source
