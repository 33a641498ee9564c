package dlq

import "testing"

func TestFingerprint(t *testing.T) {
	for in, want := range map[string]string{
		"": "",
		"POST http://127.0.0.1:9000/hook: 503 Service Unavailable: gateway down": "POST http://<addr>/hook: 503 Service Unavailable: gateway down",
		"POST http://127.0.0.1:9000/hook: 422 Unprocessable Entity":              "POST http://<addr>/hook: 422 Unprocessable Entity",
		"order 4115 not found": "order <n> not found",
		"order 404 not found":  "order 404 not found", // a status, as far as anyone can tell
		"customer 7b2b6c0e-8f5e-4f55-9b39-0f7d2e1b3c4d is locked":        "customer <uuid> is locked",
		"dial tcp 10.1.2.3:5432: connect: connection refused":            "dial tcp <addr>: connect: connection refused",
		"dial tcp [2001:db8::1]:443: i/o timeout":                        "dial tcp <addr>: i/o timeout",
		"lookup db-3.internal:5432 failed":                               "lookup <addr> failed",
		"lookup db-3.internal failed":                                    "lookup db-<n>.internal failed",
		`pq: duplicate key value violates "orders_pkey", Key (id)=(991)`: `pq: duplicate key value violates "<text>", Key (id)=(<n>)`,
		"can't parse 'abc': don't":                                       "can't parse '<text>': don't",
		"panic at 0xc000123abc, commit deadbeefcafe12":                   "panic at <hex>, commit <hex>",
		"token ord_8Fk2Lm expired for ada@example.org":                   "token <id> expired for <addr>",
		"timeout after 30s, 1.5s late":                                   "timeout after <n>s, <n>.<n>s late",
		"2026-01-02T03:04:05Z: too old":                                  "<n>-<n>-<n>:<n>:<n>: too old",
		"invalid utf8 in x509 over http2":                                "invalid utf8 in x509 over http2",
		"/bin/sh: exit status 65: order 12 has no address":               "/bin/sh: exit status 65: order <n> has no address",
		"main.go:112: \x00 \u2028 \xff":                                  "main.go:<n>: \x00 \u2028 \xff",
		`an open quote " and 17`:                                         `an open quote " and <n>`,
	} {
		if in == "2026-01-02T03:04:05Z: too old" {
			if a, b := Fingerprint(in), Fingerprint("2026-11-30T23:14:55Z: too old"); a != b {
				t.Errorf("times differ: %q and %q", a, b)
			}
			continue
		}
		if got := Fingerprint(in); got != want {
			t.Errorf("%q\n got %q\nwant %q", in, got, want)
		}
	}
}

func FuzzFingerprint(f *testing.F) {
	f.Add(`dial tcp [::1]:80: "x" 'y' 12-ab-0x3 a@b.c`)
	f.Fuzz(func(t *testing.T, s string) {
		if got := Fingerprint(s); len(got) > 8*len(s)+8 {
			t.Errorf("%d bytes of %d", len(got), len(s))
		}
	})
}

func BenchmarkFingerprint(b *testing.B) {
	for b.Loop() {
		Fingerprint("POST http://10.0.0.17:9000/hook: 503 Service Unavailable: upstream 7b2b6c0e-8f5e-4f55-9b39-0f7d2e1b3c4d")
	}
}
