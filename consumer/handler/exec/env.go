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

// messageEnv makes all variables in one piece of memory.
func messageEnv(m *consumer.Msg) []string {
	headers, omitted := encodeHeaders(m.Header, maxHeaders)
	var small [1 << 10]byte
	b := small[:0]
	var ends [13]int
	n := 0
	end := func() { ends[n] = len(b); n++ }
	text := func(name, value string) { b = append(append(b, name...), value...); end() }
	number := func(name string, value uint64) { b = strconv.AppendUint(append(b, name...), value, 10); end() }
	when := func(name string, t time.Time) { b = t.UTC().AppendFormat(append(b, name...), time.RFC3339Nano); end() }
	text("RELAY_ID=", m.ID)
	number("RELAY_ATTEMPT=", uint64(m.Attempt))
	text("RELAY_ROUTE=", m.Route)
	text("RELAY_SUBJECT=", m.Subject)
	text("RELAY_STREAM=", m.Stream)
	text("RELAY_CONSUMER=", m.Consumer)
	number("RELAY_SEQUENCE=", m.Sequence)
	when("RELAY_TIME=", m.Time)
	number("RELAY_REPLAY=", uint64(m.Replay))
	text("RELAY_HEADERS=", headers)
	if m.Fence != 0 {
		number("RELAY_FENCE=", m.Fence)
	}
	if omitted > 0 {
		number("RELAY_HEADERS_OMITTED=", uint64(omitted))
	}
	if !m.Deadline.IsZero() {
		when("RELAY_DEADLINE=", m.Deadline)
	}
	all, env, from := string(b), make([]string, n), 0
	for i := range env {
		env[i] = all[from:ends[i]]
		from = ends[i]
	}
	return env
}

// encodeHeaders writes headers as a JSON object of at most limit bytes, and counts those that did not fit.
func encodeHeaders(h nats.Header, limit int) (string, int) {
	if len(h) == 0 {
		return "{}", 0
	}
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
