package exec

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/consumer"
)

// maxHeaders bounds RELAY_HEADERS. Linux takes 128 KiB for one variable; what a program can bear is less certain.
const maxHeaders = 32 << 10

func messageEnv(m *consumer.Msg) []string {
	headers, omitted := encodeHeaders(m.Header, maxHeaders)
	env := []string{
		"RELAY_ID=" + m.ID,
		"RELAY_ATTEMPT=" + strconv.Itoa(m.Attempt),
		"RELAY_ROUTE=" + m.Route,
		"RELAY_SUBJECT=" + m.Subject,
		"RELAY_STREAM=" + m.Stream,
		"RELAY_CONSUMER=" + m.Consumer,
		"RELAY_SEQUENCE=" + strconv.FormatUint(m.Sequence, 10),
		"RELAY_TIME=" + m.Time.UTC().Format(time.RFC3339Nano),
		"RELAY_REPLAY=" + strconv.Itoa(m.Replay),
		"RELAY_HEADERS=" + headers,
	}
	if m.Fence != 0 {
		env = append(env, "RELAY_FENCE="+strconv.FormatUint(m.Fence, 10))
	}
	if omitted > 0 {
		env = append(env, "RELAY_HEADERS_OMITTED="+strconv.Itoa(omitted))
	}
	if !m.Deadline.IsZero() {
		env = append(env, "RELAY_DEADLINE="+m.Deadline.UTC().Format(time.RFC3339Nano))
	}
	return env
}

// encodeHeaders writes headers as a JSON object of at most limit bytes, and counts those that did not fit.
func encodeHeaders(h nats.Header, limit int) (string, int) {
	out, omitted := []byte{'{'}, 0
	for _, name := range slices.Sorted(maps.Keys(h)) {
		key, _ := json.Marshal(name) // strings and lists of them cannot fail
		values, _ := json.Marshal(h[name])
		if len(out)+len(key)+len(values)+len(",:}") > limit {
			omitted++
			continue
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(append(append(out, key...), ':'), values...)
	}
	return string(append(out, '}')), omitted
}
