// Package archive keeps what became of messages: a record of each that is through, many of them in one message of the stream
// <SERVICE>_ARCHIVE, so that a command can look one up later.
//
//	Writer.Add ── batch of the stream ── full, or half a second old ── senders ── <service>.archive.<stream>
//	                                                                                 headers: lowest and highest sequence
//	Find ── headers alone, from the time when the message was published ── opens what can hold its sequence
//
// It is no ledger: what is in memory when a process is killed is not written, what finds no room while the stream is away is dropped and counted, and
// a message that is delivered again has a record more. Handling messages never waits for it.
package archive
