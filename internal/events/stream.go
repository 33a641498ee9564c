package events

import (
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/event"
)

// StreamName is that of the stream in which the events of a service are stored.
func StreamName(service string) string { return strings.ToUpper(service) + "_EVENTS" }

// Stream is what the stream has to be. Of what is beyond its bounds the oldest go. The server sets maxBytes aside for the stream at once.
func Stream(service string, replicas int, maxAge time.Duration, maxBytes, maxMsgs int64) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: StreamName(service), Description: "relay: events", Subjects: []string{event.Prefix(service) + ".>"}, Retention: jetstream.LimitsPolicy,
		Storage: jetstream.FileStorage, Discard: jetstream.DiscardOld, Replicas: replicas, MaxAge: maxAge, MaxMsgs: maxMsgs,
		MaxBytes: maxBytes, MaxMsgSize: -1, MaxMsgsPerSubject: -1, AllowDirect: true, Duplicates: min(2*time.Minute, maxAge),
	}
}
