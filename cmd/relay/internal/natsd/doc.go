// Package natsd runs nats-server inside relay's own process, for those who give no nats.url.
//
// What is hard about it is to say no. In process the server ends nothing and reports little: a JetStream that cannot
// start is one log line, a stream whose files it cannot read is skipped with a warning, a directory it cannot list is
// an empty store, and publishes into a store that was deleted under it are confirmed (all tried with nats-server
// v2.15.2). relay would then make its streams afresh over the old ones. So this package asks the disk first:
//
//	address   loopback only, bound once to see that it is free
//	directory ours, a directory, mode 0700
//	lock      flock on relay.lock in it: one process per store
//	survey    every file and directory that JetStream will read is opened; streams and consumers are listed
//	start     what the server calls fatal is the error of [Start]
//	verify    the server must answer for each stream and durable of the survey
//
// Afterwards a watch looks once a second whether the directory is still the one that was locked. When it is not, the
// server is shut down, so that it confirms nothing more, and [Server.Done] is closed. A full disk does not end the
// server: [Server.Healthz] says so until space is free and relay was started again.
//
// What no check here can see: message blocks that were removed or cut by hand. JetStream starts without those messages
// and says so with a warning, which is logged as an error when it comes during the start.
//
// An empty Listen has no listener at all. With one, whoever connects needs the NKey that is in the store, with mode 0600
// in a directory of mode 0700: every user of the host can reach loopback.
package natsd
