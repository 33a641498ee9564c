package provision

import (
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Risks names the settings of a stream under which a message that waits for its retry can vanish, each with its remedy.
// The server removes it without asking whether anybody still has to handle it; the only trace is an advisory. span is how
// long a message may wait.
func Risks(c jetstream.StreamConfig, span time.Duration) (list []string) {
	warn := func(format string, args ...any) { list = append(list, fmt.Sprintf(format, args...)) }
	if c.MaxAge > 0 && c.MaxAge < span {
		warn("max_age is %v, but a failing message may wait for %v (retry.max_age): raise max_age or lower retry.max_age", c.MaxAge, span)
	}
	if c.Discard == jetstream.DiscardOld && c.Retention != jetstream.WorkQueuePolicy {
		// On a work queue the oldest messages are those that wait; elsewhere they may have been handled long ago.
		for _, limit := range []struct {
			name  string
			value int64
		}{{"max_msgs", c.MaxMsgs}, {"max_bytes", c.MaxBytes}} {
			if limit.value > 0 {
				warn("%s is %d and discard is old: a full stream removes its oldest messages, handled or not; set discard to new, or make room for %v of messages",
					limit.name, limit.value, span)
			}
		}
	}
	if c.Discard == jetstream.DiscardOld && c.Retention == jetstream.WorkQueuePolicy && (c.MaxMsgs > 0 || c.MaxBytes > 0) {
		warn("it is a work queue with a limit (max_msgs, max_bytes) and discard is old: a full stream removes messages that nobody handled; set discard to new")
	}
	if c.MaxMsgsPerSubject > 0 && !c.DiscardNewPerSubject {
		warn("max_msgs_per_subject is %d: a new message removes an older one of its subject, handled or not; set discard to new with discard_new_per_subject",
			c.MaxMsgsPerSubject)
	}
	if c.AllowMsgTTL {
		warn("allow_msg_ttl is on: a message whose Nats-TTL is over is removed, handled or not; publishers should leave out Nats-TTL or make it longer than %v", span)
	}
	if c.AllowRollup {
		warn("allow_rollup_hdrs is on: one message with Nats-Rollup removes all others of the stream, or of its subject, handled or not; set it to off, or let only those publish there who may remove all of it")
	}
	if c.Storage == jetstream.MemoryStorage {
		warn("storage is memory: its messages are gone when the server restarts; set storage to file")
	}
	return list
}
