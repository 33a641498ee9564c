package natstest

import "go.uber.org/goleak"

// PutLeak is for the goleak of tests that store large bodies. Each Put of an object store in nats.go 1.55 starts a goroutine
// that looks for its channel (jetstream/publish.go, resetPendingAcksOnReconnect) and takes that channel away at its end
// (object.go, cleanupReplySub): one that is not scheduled in between, on a busy machine, finds nil and waits for ever.
func PutLeak() goleak.Option {
	return goleak.IgnoreTopFunction("github.com/nats-io/nats.go/jetstream.(*jetStream).resetPendingAcksOnReconnect")
}
