// Package tally counts what comes to the durables of this instance and what becomes of it, writes that to their ledgers, and compares the ledgers with
// the server; [audit] says what a ledger is.
//
// Whoever handles messages counts in a [RouteCount] and a [DurableCount], without a lock. A [Tally] is of one durable with its routes and their
// durables on the retry stream. It writes what was counted since it last wrote. The [Keeper] has all tallies of the instance write in turn, audits them for the
// metrics, and finds parked messages that are lost.
package tally
