// Package catchup keeps account of what a durable has passed and a route wants since: a route joined the durable, or got a subject more. The
// server never goes back for a filter that is widened. So the messages that the stream held then are handed over to the route through the
// retry stream, once. Which these are is a record beside the ledger of the durable, which all instances read and one at a time works on:
//
//	begin     the subjects, before the durable is widened
//	bound     up to which sequence, after it: what comes later is delivered by the durable
//	progress  up to which sequence they are handed over
//	end       the record is removed when the durable is behind that sequence too
//
// A message within the bound that the durable delivers nevertheless is not handled: it is handed over.
package catchup
