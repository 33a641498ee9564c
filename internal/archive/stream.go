package archive

import (
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// StreamName is that of the archive of a service.
func StreamName(service string) string { return strings.ToUpper(service) + "_ARCHIVE" }

// Prefix begins its subjects; the name of the stream of the messages follows.
func Prefix(service string) string { return service + ".archive." }

// Stream is what the stream has to be. Of what is beyond its bounds the oldest go. Zero maxMsgs means no bound. The server sets maxBytes
// aside for the stream at once.
func Stream(service string, replicas int, maxAge time.Duration, maxBytes, maxMsgs int64) jetstream.StreamConfig {
	if maxMsgs == 0 {
		maxMsgs = -1
	}
	return jetstream.StreamConfig{
		Name: StreamName(service), Description: "relay: what became of messages", Subjects: []string{Prefix(service) + "*"}, Retention: jetstream.LimitsPolicy,
		Storage: jetstream.FileStorage, Compression: jetstream.S2Compression, Discard: jetstream.DiscardOld, Replicas: replicas, MaxAge: maxAge, MaxMsgs: maxMsgs,
		MaxBytes: maxBytes, MaxMsgSize: -1, MaxMsgsPerSubject: -1, AllowDirect: true, Duplicates: min(2*time.Minute, maxAge),
	}
}

// Headers of a batch.
const (
	headerFirst    = "Relay-Archive-First"
	headerLast     = "Relay-Archive-Last"
	headerRecords  = "Relay-Archive-Records"
	headerInstance = "Relay-Archive-Instance"
)
