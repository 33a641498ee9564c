// Package kvwatch ends watches of key-value buckets.
package kvwatch

import "github.com/nats-io/nats.go/jetstream"

// Stop ends a watch without waiting. Without a reader, the goroutine of nats.go would stay for ever if it has an update in
// hand for which the channel has no room.
func Stop(w jetstream.KeyWatcher) {
	_ = w.Stop()
	go func() {
		for range w.Updates() { // nats.go closes it once the subscription has ended
		}
	}()
}
