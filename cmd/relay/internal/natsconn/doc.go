// Package natsconn connects relay to NATS and keeps it connected.
//
//	start     Connect says no within ten seconds, in one line that names the server and the cause
//	lost      it reconnects for ever, every 250 ms to 1 s, authentication errors included: credentials are files that
//	          somebody may be about to renew, and all files are read again at each try; of one that cannot be used, half-written or gone,
//	          what it held before is used on
//	renewed   Renew has a connection that is up use what the files hold now
//	closed    the client library gives up on some errors (an unknown -ERR, a control line too long). Then Closed is
//	          closed, and the process ends: never a live process with a dead connection
//
// Nothing is buffered while the connection is away: a publish fails at once (nats.ErrReconnectBufExceeded). relay sends
// unconfirmed acks again by itself, and only while the stream is still the same. The library's buffer would send old
// ones as well, behind relay's back: at best twice, at worst to a message that has the sequence of another.
//
// TLS: with a tls URL, a CA or a client certificate the server must speak TLS. One that offers plain text gets no
// CONNECT, and so no credentials.
package natsconn
