package provision

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

func TestRisks_eachSettingThatCanLoseAWaitingMessageIsNamedWithItsRemedy(t *testing.T) {
	safe := jetstream.StreamConfig{Storage: jetstream.FileStorage}
	if list := Risks(safe, 24*time.Hour); len(list) != 0 {
		t.Errorf("a stream without limits: %q", list)
	}
	for name, test := range map[string]struct {
		change func(*jetstream.StreamConfig)
		want   string // empty: no risk
	}{
		"short max_age":            {func(c *jetstream.StreamConfig) { c.MaxAge = time.Hour }, "max_age is 1h0m0s"},
		"long max_age":             {func(c *jetstream.StreamConfig) { c.MaxAge = 48 * time.Hour }, ""},
		"max_msgs, old":            {func(c *jetstream.StreamConfig) { c.MaxMsgs = 10 }, "max_msgs is 10 and discard is old"},
		"max_msgs, new":            {func(c *jetstream.StreamConfig) { c.MaxMsgs, c.Discard = 10, jetstream.DiscardNew }, ""},
		"max_bytes":                {func(c *jetstream.StreamConfig) { c.MaxBytes = 10 }, "max_bytes is 10"},
		"work queue":               {func(c *jetstream.StreamConfig) { c.MaxMsgs, c.Retention = 10, jetstream.WorkQueuePolicy }, "work queue"},
		"per subject":              {func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 1 }, "max_msgs_per_subject is 1"},
		"per subject, discard new": {func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject, c.DiscardNewPerSubject = 1, true }, ""},
		"rollup":                   {func(c *jetstream.StreamConfig) { c.AllowRollup = true }, "allow_rollup_hdrs"},
		"ttl":                      {func(c *jetstream.StreamConfig) { c.AllowMsgTTL = true }, "allow_msg_ttl"},
		"memory":                   {func(c *jetstream.StreamConfig) { c.Storage = jetstream.MemoryStorage }, "storage is memory"},
	} {
		t.Run(name, func(t *testing.T) {
			c := safe
			test.change(&c)
			list := Risks(c, 24*time.Hour)
			if test.want == "" && len(list) > 0 || test.want != "" && (len(list) != 1 || !strings.Contains(list[0], test.want)) {
				t.Errorf("risks %q, want %q", list, test.want)
			}
		})
	}
}
