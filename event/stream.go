package event

import (
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// maxStored bounds the stored events of a service, beside their age: the oldest go. It is no number of bytes, which the server would
// set aside for the stream at once.
const maxStored = 100_000

// StreamName is that of the stream in which the events of a service are stored.
func StreamName(service string) string { return strings.ToUpper(service) + "_EVENTS" }

// Stream is what the stream has to be.
func Stream(service string, replicas int, maxAge time.Duration) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: StreamName(service), Description: "relay: events", Subjects: []string{Prefix(service) + ".>"}, Retention: jetstream.LimitsPolicy,
		Storage: jetstream.FileStorage, Discard: jetstream.DiscardOld, Replicas: replicas, MaxAge: maxAge, MaxMsgs: maxStored,
		MaxBytes: -1, MaxMsgSize: -1, MaxMsgsPerSubject: -1, AllowDirect: true, Duplicates: min(2*time.Minute, maxAge),
	}
}
