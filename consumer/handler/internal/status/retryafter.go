package status

import (
	nethttp "net/http"
	"strconv"
	"strings"
	"time"
)

// MaxRetryAfter is the longest pause that an endpoint may ask for: a stranger's typing error must not stop a route for a
// year.
const MaxRetryAfter = time.Hour

// RetryAfter reads the Retry-After headers of a reply: seconds, or one of the three dates of HTTP. It returns zero, which
// leaves the delay to the route's policy, for none, for more than one (nobody knows which is meant), for what is neither,
// and for a time that is already over.
func RetryAfter(values []string, now time.Time) time.Duration {
	if len(values) != 1 {
		return 0
	}
	value := strings.TrimSpace(values[0])
	if value != "" && strings.Trim(value, "0123456789") == "" {
		seconds, err := strconv.ParseUint(value, 10, 64)
		if err != nil || seconds > uint64(MaxRetryAfter/time.Second) {
			return MaxRetryAfter // digits that do not fit are many seconds
		}
		return time.Duration(seconds) * time.Second
	}
	date, err := nethttp.ParseTime(value)
	if err != nil {
		return 0
	}
	return min(max(0, date.Sub(now)), MaxRetryAfter) // Sub saturates
}
