package natstest

import "go.uber.org/goleak"

// Leaks are goroutines for which goleak is not to fail tests that use servers. One reads what natsd answers, to the end of the process. All others are
// left behind by faults of the client, and of servers that run inside the process:
//
//   - Each Put of an object store in nats.go 1.55 starts a goroutine that looks for its channel (jetstream/publish.go,
//     resetPendingAcksOnReconnect) and takes that channel away at its end (object.go, cleanupReplySub): one that is not
//     scheduled in between, on a busy machine, finds nil and waits for ever.
//   - A stream or consumer that is being made while its server stops: nats-server 2.15.2 opens the store, with its loops, before
//     the stream is known to its account (server/stream.go, setupStore), so that the shutdown does not see it.
//   - A stream that copies from another one and ends while it asks for its consumer there: the goroutine waits for the answer for up to
//     30 s (server/stream.go, trySetupSourceConsumer).
func Leaks() []goleak.Option {
	return []goleak.Option{
		goleak.IgnoreAnyFunction("github.com/relaymq/relay/internal/natstest.(*host).read"),
		goleak.IgnoreTopFunction("github.com/nats-io/nats.go/jetstream.(*jetStream).resetPendingAcksOnReconnect"),
		goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server.(*fileStore).flushStreamStateLoop"),
		goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server.(*msgBlock).flushLoop"),
		goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server.(*consumerFileStore).flushLoop"),
		goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server.(*stream).trySetupSourceConsumer.func3"),
		goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server/ats.Register.func1"), // the clock of all stores, ended with the last
	}
}
