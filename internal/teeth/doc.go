// Package teeth switches parts of relay's safety off, one at a time, so that the fault harness can prove that it notices.
// In every normal build the functions of this package are constants, which the compiler removes. A build with the tag
// chaos, which only the harness makes, reads the environment variable CHAOS_PULLED: a comma-separated list of
//
//	acks    an ack that was sent is taken for confirmed: never sent again, and a redelivery is started anew
//	fence   a lease that may be lost is taken for a good one: late NAKs, parks and dead letters are sent
//	record  the attempts of a message that failed are not written down
//	copies  a copy of a message that waits is replaced whatever its attempts, and nobody looks for it
//	fresh   a waiting route probes only with messages that failed before
//	call    what is aside is never called back
//	pace    a route in doubt asks as fast as its slots can
//	question  callers are not asked whether they still want a message
//	lease   an instance goes on with what only one may have after its lease is over
//	alone   a route with instances: one, or order: key, is handled by all instances
//	lend    the fallback of a route gets nothing of what waits
//	hints   an instance tells the others nothing of an outage
//	expect  a dead letter is stored whether it is there already or not
package teeth
