// Package worker is the handler that gives messages to processes which live on: an actor in any language.
//
// # The lines
//
// A process gets one JSON object a line on stdin for each message:
//
//	{"id":"…","attempt":1,"subject":"orders.eu","data":"…","headers":{"Name":["value"]},"stream":"ORDERS","sequence":7,
//	 "time":"…","route":"billing","fence":1795387200000,"replay":1,"deadline":"…"}
//
// The body is data when it is UTF-8, and data_base64 otherwise. Times are RFC 3339; replay is left out when it is 0, fence without instances: one, and deadline
// when there is none. Bytes of subject and headers that are not UTF-8 become U+FFFD. The process writes one for each on stdout:
//
//	{"id":"…","verdict":"ack|retry|snooze|dead|drop","delay":"30s","error":"why","result":"…","result_base64":"…"}
//
// All but id and verdict may be left out; delay may be a number of seconds, and result any JSON. Before that it may tell how far it
// is, {"id":"…","progress":"half"}, and it begins with {"ready":true} when the config asks for that. Where the time of a message is over,
// or nobody wants it any more, or relay ends, it gets {"cancel":"id"}: what it answers within the grace counts, and otherwise it is
// killed. What it writes to stderr goes to the log.
//
// # Whose fault it is
//
// A process that exits, closes its stdout, or writes a line that is no answer to what it has in hand, has ended: a stop
// ([consumer.Crashed]). The message that it alone had in hand is charged one attempt. When it had several, nobody knows whose fault it
// was: none is charged, nothing counts against their keys, and each runs alone next (suspects.go, places.go). A message that it had not begun to read, by what is
// left in its stdin, goes to the next process; so that one that exits after each so many messages costs nobody anything. One that ends
// before it has read anything or said that it is ready has not started, which stops the route when it lasts.
//
// A message that hangs is charged; those beside it are not, and no suspects either: they just come again.
//
// # How it is fast
//
// There is no goroutine for a message, nor one that reads: whoever waits for an answer reads, and gives others theirs (call.go). The
// line of a message is made by hand.
//
// How processes are held together, and what user and limits do, is in the comment of the package process.
package worker
