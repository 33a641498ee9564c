package http

import (
	nethttp "net/http"
	"strconv"
	"strings"
	"time"

	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/consumer/handler/internal/snippet"
)

// maxQuota is how long the header may be in which an endpoint lists what it permits.
const maxQuota = 4 << 10

// quota is what an endpoint says that it still permits: so many requests until the reset. The zero value is nothing that it said.
type quota struct {
	left  int
	reset time.Duration // above 0, or nothing was said
	said  string        // the header
}

// quotaOf reads the headers of an answer: RateLimit with RateLimit-Policy as in draft-ietf-httpapi-ratelimit-headers, versions 7 to 11; or
// the pair RateLimit-Remaining and RateLimit-Reset of its earlier versions; or that pair with X- before it, which many have. What is not
// understood is as if it were not there.
func quotaOf(h nethttp.Header, now time.Time) quota {
	if values := h["Ratelimit"]; len(values) > 0 {
		if q := listed(values, h["Ratelimit-Policy"], now); q.reset > 0 {
			q.said = "RateLimit: " + strings.Join(values, ", ")
			return q
		}
	}
	for _, prefix := range []string{"", "X-"} {
		remaining, reset := h[prefix+"Ratelimit-Remaining"], h[prefix+"Ratelimit-Reset"]
		if len(remaining) != 1 || len(reset) != 1 { // of two nobody knows which is meant
			continue
		}
		left, err := strconv.ParseUint(strings.TrimSpace(remaining[0]), 10, 31)
		if d := untilReset(reset[0], now); err == nil && d > 0 {
			return quota{int(left), d, prefix + "RateLimit-Remaining: " + remaining[0] + ", " + prefix + "RateLimit-Reset: " + reset[0]}
		}
	}
	return quota{}
}

// longestReset is as long as consumer.Msg.Slow counts.
const longestReset = time.Hour

// untilReset reads so many seconds, or a time since 1970 in seconds or milliseconds, which no count of seconds comes near. It returns
// at most an hour; 0 for what is not understood or over.
func untilReset(value string, now time.Time) time.Duration {
	value = strings.TrimSpace(value)
	seconds, err := strconv.ParseFloat(value, 64)
	if err != nil || strings.Trim(value, "0123456789.") != "" {
		return 0
	}
	switch at := float64(now.UnixMilli()) / 1000; {
	case seconds >= 1e11:
		seconds = seconds/1000 - at
	case seconds >= 1e9:
		seconds -= at
	}
	return time.Duration(min(max(0, seconds), longestReset.Seconds()) * float64(time.Second))
}

// listed reads the RateLimit header: a list of policies, each with what is left of it, or the dictionary of version 7. It returns
// the policy with the fewest requests left. One that counts something else than requests is left out.
func listed(values, policies []string, now time.Time) (least quota) {
	of := make(map[string]params)
	for _, i := range items(policies) {
		of[i.name] = i.params
	}
	before := make(params) // limit=100, remaining=50, reset=5
	for _, i := range items(values) {
		if name, value, ok := strings.Cut(i.name, "="); ok && !strings.HasPrefix(i.name, `"`) {
			before[name] = value
			continue
		}
		policy := of[i.name]
		if unit := policy["qu"]; unit != "" && unit != `"requests"` {
			continue
		}
		left, ok := i.params.whole("r")
		if !ok {
			continue
		}
		seconds, ok := i.params.whole("t")
		if !ok {
			seconds, _ = policy.whole("w") // it is over by then
		}
		least = least.or(left, seconds, now)
	}
	left, ok := before.whole("remaining")
	if seconds, also := before.whole("reset"); ok && also {
		least = least.or(left, seconds, now)
	}
	return least
}

// or is the stricter one.
func (q quota) or(left, seconds int64, now time.Time) quota {
	n, reset := int(min(left, 1<<31-1)), untilReset(strconv.FormatInt(seconds, 10), now)
	if reset <= 0 || q.reset > 0 && (n > q.left || n == q.left && reset <= q.reset) {
		return q
	}
	return quota{left: n, reset: reset}
}

// item is one of a list of structured field values (RFC 9651), as it stands there: strings have their quotes.
type item struct {
	name   string
	params params
}

type params map[string]string

// whole is a parameter that is an integer, and not below 0.
func (p params) whole(name string) (int64, bool) {
	n, err := strconv.ParseUint(p[name], 10, 50) // which has 15 digits at most
	return int64(n), err == nil
}

// items reads a list. It needs so little of RFC 9651 that what breaks its rules elsewhere passes.
func items(values []string) (list []item) {
	text := strings.Join(values, ",")
	if len(text) > maxQuota {
		return nil
	}
	for _, member := range unquoted(text, ',') {
		parts := unquoted(member, ';')
		i := item{parts[0], make(params)}
		for _, p := range parts[1:] {
			name, value, _ := strings.Cut(p, "=")
			i.params[name] = value
		}
		list = append(list, i)
	}
	return list
}

// unquoted splits a text at a character where that does not stand between quotes.
func unquoted(text string, at byte) (parts []string) {
	from, quoted := 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\' && quoted:
			i++
		case c == '"':
			quoted = !quoted
		case c == at && !quoted:
			parts, from = append(parts, strings.Trim(text[from:i], " \t")), i+1
		}
	}
	return append(parts, strings.Trim(text[from:], " \t"))
}

// heed has the route of m start no more than the answer permits. With a host that messages choose there are many endpoints, and none
// of them may slow down what goes to the others.
func (h *Handler) heed(to endpoint, r *reply, m *consumer.Msg) {
	if r.quota.reset > 0 && !h.to.hostChosen() {
		m.Slow(r.quota.left, r.quota.reset, to.name+" answered with "+snippet.Head([]byte(r.quota.said), maxShown))
	}
}
