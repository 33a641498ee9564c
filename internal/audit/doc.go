// Package audit keeps the ledger of each durable: how many messages came in and what became of them, counted by relay, and compared
// with what the server says. For a durable with its routes, since the ledger began,
//
//	carried + received + replayed = done + fallback + dead + dropped + expired + forgotten + discarded + waiting
//
// The left side and the ends are relay's counts. What waits is the server's: what the durable has outstanding, and what the retry stream
// has of its stream.
//
// The counts of a process die with it, so each instance adds what it counted since the last time to the durable's record, in the bucket
// <SERVICE>_LEDGER, every few seconds and at its end. A record is changed by compare-and-set and says which addition of each instance
// it has, so that one of which no answer came is not made twice. What a kill can cost is bounded, and the record has the bound:
//
//   - deliveries that nobody counted: the server numbers the deliveries of a durable without gaps, so they are the difference of
//     its number and relay's count;
//   - what an instance had in hand when it last wrote: an end that it did not write any more was of such a message, or of one whose
//     delivery nobody counted.
//
// Messages that ended twice, as at least once permits, came twice without a NAK that asked for that. Those are counted, too.
package audit
