package http

import (
	nethttp "net/http"
	"strconv"
	"strings"
	"testing"
	"time"
)

var quotaNow = time.Unix(1_790_000_000, 0)

// The forms in which endpoints say what they still permit, and what they say in vain.
func TestQuota_headers(t *testing.T) {
	t.Parallel()
	in := func(d time.Duration) string { return strconv.FormatInt(quotaNow.Add(d).Unix(), 10) }
	for _, c := range []struct {
		headers string
		left    int
		reset   time.Duration // 0: nothing was said
	}{
		{`RateLimit: "default";r=0;t=30`, 0, 30 * time.Second},
		{`RateLimit: "default";r=50;t=30|RateLimit-Policy: "default";q=100;w=60`, 50, 30 * time.Second},
		{`RateLimit: "a;r=9, b\"";r=7;t=5;pk=:cHNrCg==:`, 7, 5 * time.Second},
		{`RateLimit: "day";r=100;t=5000, "burst";r=3;t=1`, 3, time.Second},                                // the fewest
		{`RateLimit: "day";r=0;t=5000|RateLimit: "burst";r=0;t=1`, 0, time.Hour},                          // the longest of the fewest
		{`RateLimit: "minute";r=0|RateLimit-Policy: "other";q=9;w=1, "minute";q=10;w=60`, 0, time.Minute}, // without t: its window
		{`RateLimit: "bytes";r=0;t=9, "default";r=5;t=9|RateLimit-Policy: "bytes";q=9;w=9;qu="content-bytes"`, 5, 9 * time.Second},
		{`RateLimit: limit=100, remaining=50, reset=5`, 50, 5 * time.Second}, // version 7
		{`RateLimit-Limit: 100, 100;w=60|RateLimit-Remaining: 0|RateLimit-Reset: 50`, 0, 50 * time.Second},
		{`X-RateLimit-Remaining: 2|X-RateLimit-Reset: ` + in(20*time.Second), 2, 20 * time.Second},
		{`X-RateLimit-Remaining: 2|X-RateLimit-Reset: ` + in(20*time.Second) + `500`, 2, 20500 * time.Millisecond},
		{`X-RateLimit-Remaining: 2|X-RateLimit-Reset: 1.5`, 2, 1500 * time.Millisecond},
		{`X-RateLimit-Remaining: 0|X-RateLimit-Reset: ` + in(48*time.Hour), 0, time.Hour},
		{`RateLimit: nonsense(|X-RateLimit-Remaining: 1|X-RateLimit-Reset: 3`, 1, 3 * time.Second},

		{headers: `RateLimit: "default";r=0`},
		{headers: `RateLimit: "default;r=0;t=30`},
		{headers: `RateLimit: "default\";r=0;t=30`},
		{headers: `RateLimit: "default";r=-1;t=30`},
		{headers: `RateLimit: "default";r=0;t=-30`},
		{headers: `RateLimit: "default";r=0.5;t=30`},
		{headers: `RateLimit: ("default";r=0;t=30)`},
		{headers: `RateLimit: "default";r=0;t=30` + strings.Repeat(" ", maxQuota)},
		{headers: `RateLimit: limit=100, remaining=50`},
		{headers: `RateLimit-Remaining: 0`},
		{headers: `RateLimit-Remaining: 0|X-RateLimit-Reset: 9`},
		{headers: `RateLimit-Remaining: 0|RateLimit-Remaining: 5|RateLimit-Reset: 9`},
		{headers: `RateLimit-Remaining: -1|RateLimit-Reset: 9`},
		{headers: `RateLimit-Remaining: 0|RateLimit-Reset: 0`},
		{headers: `RateLimit-Remaining: 0|RateLimit-Reset: Inf`},
		{headers: `RateLimit-Remaining: 0|RateLimit-Reset: 1e3`},
		{headers: `RateLimit-Remaining: 0|RateLimit-Reset: ` + in(-time.Second)},
	} {
		h := nethttp.Header{}
		for line := range strings.SplitSeq(c.headers, "|") {
			name, value, _ := strings.Cut(line, ": ")
			h.Add(name, value)
		}
		q := quotaOf(h, quotaNow)
		if q.left != c.left || q.reset != c.reset || (q.reset > 0) != (q.said != "") {
			t.Errorf("%s: %d until %v (%q), want %d until %v", c.headers, q.left, q.reset, q.said, c.left, c.reset)
		}
	}
}

// Whatever an endpoint says, it cannot stop a route for longer than the bound, nor permit a number below zero.
func FuzzQuota(f *testing.F) {
	f.Add(`"default";r=0;t=30`, `"default";q=100;w=60;qu="requests"`, "0", "30")
	f.Add(`limit=100, remaining=50, reset=5`, "", "1", "1790000030")
	f.Add(`"a";r=999999999999999;t=999999999999999`, `"a"`, "99999999999", "1790000030123")
	f.Add(`("a";r=1);t=1, *, :YQ==:;r=1;t=1, ?1;r=0;t=9`, `();w=1`, "-1", ".")
	f.Fuzz(func(t *testing.T, limit, policy, remaining, reset string) {
		for _, h := range []nethttp.Header{
			{"Ratelimit": {limit}, "Ratelimit-Policy": {policy}},
			{"Ratelimit-Remaining": {remaining}, "Ratelimit-Reset": {reset}},
		} {
			q := quotaOf(h, quotaNow)
			if q.left < 0 || q.reset < 0 || q.reset > longestReset || (q.reset > 0) != (q.said != "") {
				t.Errorf("%v: %+v", h, q)
			}
		}
	})
}
