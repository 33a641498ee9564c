package fingerprint

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestFingerprint(t *testing.T) {
	for in, want := range map[string]string{
		"": "",
		"POST http://127.0.0.1:9000/hook: 503 Service Unavailable: gateway down": "POST http://<addr>/hook: 503 Service Unavailable: gateway down",
		"POST http://127.0.0.1:9000/hook: 422 Unprocessable Entity":              "POST http://<addr>/hook: 422 Unprocessable Entity",
		"order 4115 not found":                                           "order <*> not found",
		"order 404 not found":                                            "order <*> not found",
		"order 404 Not Found":                                            "order <*> Not Found",
		"coupon code 417 expired":                                        "coupon code <*> expired",
		"HTTP/1.1 503 from order 503":                                    "HTTP/<*> 503 from order <*>",
		"HTTP/2 404":                                                     "HTTP/<*> 404",
		"status: 502, order 502":                                         "status: 502, order <*>",
		`{"status":502,"order":502}`:                                     `{"status":502,"order":<*>}`,
		"status:502 of order:502":                                        "status:502 of order:<*>",
		"unexpected status code 500 for 501":                             "unexpected status code 500 for <*>",
		"exit status 137: order 137 has no address":                      "exit status 137: order <*> has no address",
		"exited with code 3":                                             "exited with code 3",
		"rpc error: code = 14 desc = 14 left":                            "rpc error: code = 14 desc = <*> left",
		"the endpoint answered 503":                                      "the endpoint answered 503",
		"query returned 250 rows":                                        "query returned <*> rows",
		"upstream returned 502":                                          "upstream returned 502",
		"SQLSTATE 23505, row 23505":                                      "SQLSTATE 23505, row <*>",
		"customer 7b2b6c0e-8f5e-4f55-9b39-0f7d2e1b3c4d is locked":        "customer <*> is locked",
		"dial tcp 10.1.2.3:5432: connect: connection refused":            "dial tcp <addr>: connect: connection refused",
		"dial tcp [2001:db8::1]:443: i/o timeout":                        "dial tcp <addr>: i/o timeout",
		"host fe80::1 at aa:bb:cc:dd:ee:ff: down":                        "host <addr> at <addr>: down",
		"lookup db-3.internal:5432 failed":                               "lookup db-<*>.internal:<*> failed",
		"lookup db-3.internal failed":                                    "lookup db-<*>.internal failed",
		`pq: duplicate key value violates "orders_pkey", Key (id)=(991)`: `pq: duplicate key value violates "orders_pkey", Key (id)=(<*>)`,
		`cannot read "a \" b": 7`:                                        `cannot read "a \" b": <*>`,
		"can't parse 'abc': don't":                                       "can't parse 'abc': don't",
		"panic at 0xc000123abc, commit deadbeefcafe12":                   "panic at <*>, commit <*>",
		"token ord_8Fk2Lm expired for ada@example.org":                   "token ord_<*> expired for <addr>",
		"timeout after 30s, 1.5s late, 64KiB read":                       "timeout after <duration> late, <*> read",
		"2026-01-02T03:04:05Z: too old":                                  "<time>: too old",
		"invalid utf8 in x509 over http2":                                "invalid utf8 in x509 over http2",
		"/bin/sh: exit status 65: order 12 has no address":               "/bin/sh: exit status 65: order <*> has no address",
		"main.go:112: \x00 \u2028 \xff":                                  "main.go:<*>: \x00 \xff",
		`an open quote " and 17`:                                         `an open quote " and <*>`,
		"balance -12 of 1,234,567 is below 0.5":                          "balance <*> of <*> is below <*>",
		"You may retry, 5 times":                                         "You may retry, <*> times",
	} {
		if got := Of(in); got != want {
			t.Errorf("%q\n got %q\nwant %q", in, got, want)
		}
	}
}

// what a message differs in from the next one, drawn at random.
func differing(r *rand.Rand, kind int) string {
	hex := func(n int) string {
		b := make([]byte, n)
		for i := range b {
			b[i] = "0123456789abcdef"[r.IntN(16)]
		}
		return string(b)
	}
	at := time.Unix(r.Int64N(4e9), r.Int64N(1e9)).UTC()
	switch kind {
	case 0:
		return fmt.Sprint(r.IntN(1000))
	case 1:
		return fmt.Sprint(r.Uint64() >> r.IntN(64))
	case 2:
		return fmt.Sprintf("%s-%s-%s-%s-%s", hex(8), hex(4), hex(4), hex(4), hex(12))
	case 3:
		return hex(8 + r.IntN(33))
	case 4:
		return at.Format(time.RFC3339Nano)
	case 5:
		return at.Truncate(time.Millisecond).In(time.FixedZone("", 2*3600)).Format(time.RFC3339Nano)
	case 6:
		return at.Format(time.RFC1123)
	case 7:
		return at.Format(time.DateTime + ".999")
	case 8:
		return at.Format("02-Jan-2006")
	case 9:
		return at.Format("January 2, 2006")
	case 10:
		return "ord-" + fmt.Sprint(r.IntN(100_000))
	case 11:
		return "inv" + fmt.Sprint(r.IntN(100_000))
	case 12:
		return fmt.Sprintf("%.2f", r.Float64()*1000)
	case 13:
		return fmt.Sprint(r.IntN(2000) - 1000)
	case 14:
		return fmt.Sprintf("0x%x", r.Uint64()>>r.IntN(64))
	case 15:
		return time.Duration(r.Int64N(int64(time.Hour)) >> r.IntN(30) << 1).String()
	case 16:
		return fmt.Sprintf("%d.%d.%d.%d:%d", r.IntN(256), r.IntN(256), r.IntN(256), r.IntN(256), r.IntN(65536))
	case 17:
		return fmt.Sprintf("%q", fmt.Sprintf(`name %d"\`, r.IntN(1000)))
	case 18:
		return fmt.Sprintf("user%d@host%d.example", r.IntN(1000), r.IntN(1000))
	case 19:
		return "key_" + hex(12)
	case 20:
		return fmt.Sprintf("%s.json", fmt.Sprintf("%s-%s-%s-%s-%s", hex(8), hex(4), hex(4), hex(4), hex(12)))
	}
	return fmt.Sprintf("ORD%06d", r.IntN(1_000_000))
}

// One cause with an order number in it made 501 groups: any number from 100 to 599 counted as a status.
func TestFingerprint_oneCauseIsOneGroup(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, cause := range []string{
		"order %s not found", "order %s: Not Found", "no stock for item (%s)", "coupon code %s expired", "customer=%s is locked", "retry %s later: gateway down",
		"%s", "%s: too old", "cannot charge account %s, try again", "POST http://10.1.1.1:80/hook: 503 Service Unavailable: order %s",
		"exit status 65: order %s has no address", "[%s] failed", "id#%s unknown", "got %s items", "/orders/%s/lines: missing", "value %s, want 17",
		"status 503 for order %s", "HTTP 500 (%s)", "returned %s rows", "in step 3 of %s\n at main.go:12",
	} {
		for kind := range 22 {
			want, sample := "", ""
			for range 300 {
				text := fmt.Sprintf(cause, differing(r, kind))
				got := Of(text)
				if want == "" {
					want, sample = got, text
				}
				if got != want {
					t.Errorf("kind %d: %q is %q, but %q is %q", kind, sample, want, text, got)
					break
				}
			}
		}
	}
}

// What went wrong is not what differs from message to message: statuses and exit codes are groups of their own.
func TestFingerprint_statusesAreDifferentGroups(t *testing.T) {
	for _, cause := range []string{
		"HTTP %d", "HTTP/1.1 %d", "http status %d", "status %d", "status: %d", "status=%d", "unexpected status code %d", "StatusCode: %d, body: x",
		`{"status":%d}`, "the endpoint answered %d", "the endpoint answered %d after 3 tries", "responded with %d", "returned %d", "got %d, want 200", "request failed (code %d)", "HTTP error %d",
		"POST http://10.0.0.7/hook: %d", "error %d: try later", "GET /x: %d",
	} {
		seen := map[string]int{}
		for _, status := range []int{400, 401, 403, 404, 408, 409, 410, 422, 429, 500, 502, 503, 504} {
			text := fmt.Sprintf(cause, status)
			if strings.HasPrefix(cause, "POST") || strings.HasPrefix(cause, "GET") {
				text += " " + http.StatusText(status)
			}
			print := Of(text)
			if other, ok := seen[print]; ok {
				t.Errorf("%q: %d and %d are one group, %q", cause, other, status, print)
			}
			seen[print] = status
		}
	}
	for _, cause := range []string{"exit status %d", "exit status %d: no such order 17", "exited with code %d", "exit code %d", "signal %d", "errno %d", "os error %d"} {
		seen := map[string]int{}
		for code := 1; code < 256; code++ {
			print := Of(fmt.Sprintf(cause, code))
			if other, ok := seen[print]; ok {
				t.Fatalf("%q: %d and %d are one group, %q", cause, other, code, print)
			}
			seen[print] = code
		}
	}
}

func FuzzFingerprint(f *testing.F) {
	f.Add(`dial tcp [::1]:80: "x" 'y' 12-ab-0x3 a@b.c -1 1,234 Mon, 02 Jan HTTP/1.1 503 status:5 "a\`)
	f.Fuzz(func(t *testing.T, s string) {
		if got := Of(s); len(got) > 8*len(s)+8 {
			t.Errorf("%d bytes of %d", len(got), len(s))
		}
	})
}

func BenchmarkFingerprint(b *testing.B) {
	for b.Loop() {
		Of("POST http://10.0.0.17:9000/hook: 503 Service Unavailable: upstream 7b2b6c0e-8f5e-4f55-9b39-0f7d2e1b3c4d")
	}
}
