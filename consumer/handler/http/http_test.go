package http

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	nethttp "net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/consumer/handler/internal/handlertest"
	"github.com/relaymq/relay/internal/natstest"
	"github.com/relaymq/relay/internal/supervise"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, natstest.Leaks()...) }

// slack is what a loaded machine may add to a bound that a test measures.
const slack = 2 * time.Second

func newHandler(t testing.TB, cfg Config) *Handler {
	t.Helper()
	h, err := New(cfg, 8)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Stop(context.Background()) })
	return h
}

func message() *consumer.Msg { return handlertest.Message("orders.eu.created", []byte("body")) }

// serve runs a well-behaved server.
func serve(t *testing.T, f nethttp.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(f)
	t.Cleanup(s.Close)
	return s
}

// raw runs a server of bare connections, for answers that net/http would not give, and returns its URL. Connections are
// closed when f returns and at the end of the test; f is waited for.
func raw(t testing.TB, f func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var open sync.Map
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			open.Store(c, nil)
			wg.Go(func() { defer c.Close(); f(c) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		open.Range(func(c, _ any) bool { c.(net.Conn).Close(); return true })
		wg.Wait()
	})
	return "http://" + l.Addr().String()
}

// answer reads one request after the other and writes the same bytes to each.
func answer(text string) func(net.Conn) {
	return func(c net.Conn) {
		r := bufio.NewReader(c)
		for readRequest(r) == nil {
			if _, err := io.WriteString(c, text); err != nil {
				return
			}
		}
	}
}

func readRequest(r *bufio.Reader) error {
	req, err := nethttp.ReadRequest(r)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, req.Body)
	return err
}

// rest reads until the peer is gone.
func rest(c net.Conn) { _, _ = io.Copy(io.Discard, c) }

func TestHandle_request(t *testing.T) {
	type seen struct {
		Method, URI, Host, Proto, Body string
		Header                         nethttp.Header
	}
	got := make(chan seen, 1)
	s := serve(t, func(_ nethttp.ResponseWriter, r *nethttp.Request) {
		body, _ := io.ReadAll(r.Body)
		got <- seen{r.Method, r.RequestURI, r.Host, r.Proto, string(body), r.Header}
	})
	h := newHandler(t, Config{
		URL: strings.Replace(s.URL, "http://", "http://me:pa%20ss@", 1) + "/a%2Fb?x=1&y=%20", Method: "PUT",
		Headers:        map[string]string{"x-fixed": "yes", "X-Both": "config"},
		ForwardHeaders: []string{"x-both", "TraceParent", "Content-Type"},
	})
	m := handlertest.Message("a b%.é\xff\x01", []byte("\x00\xff{}\r\n"))
	m.Header = nats.Header{
		"X-Both": {"message"}, "traceparent": {"1"}, "TRACEPARENT": {"2", "3"}, "X-Other": {"no"}, "content-type": {"text/csv; header=present"},
	}
	if err := h.Handle(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	want := seen{
		Method: "PUT", URI: "/a%2Fb?x=1&y=%20", Host: strings.TrimPrefix(s.URL, "http://"), Proto: "HTTP/1.1", Body: "\x00\xff{}\r\n",
		Header: nethttp.Header{
			"Authorization": {"Basic bWU6cGEgc3M="}, "Content-Length": {"6"}, "Content-Type": {"text/csv; header=present"}, "User-Agent": {"relay"},
			"Relay-Id": {"ORDERS~billing~42~1"}, "Relay-Attempt": {"3"}, "Relay-Route": {"billing"}, "Relay-Subject": {"a%20b%25.%C3%A9%FF%01"},
			"Relay-Deadline": {"2026-01-02T03:04:35.000Z"},
			"X-Fixed":        {"yes"}, "X-Both": {"config"}, "Traceparent": {"2", "3", "1"},
		},
	}
	if diff := cmp.Diff(want, <-got); diff != "" {
		t.Error(diff)
	}
}

func TestHandle_everyStatus(t *testing.T) {
	var current atomic.Int64
	u := raw(t, func(c net.Conn) {
		r := bufio.NewReader(c)
		for readRequest(r) == nil {
			status := current.Load()
			fmt.Fprintf(c, "HTTP/1.1 %03d Reason\r\n", status)
			if status >= 200 && status != 204 && status != 304 {
				io.WriteString(c, "Content-Length: 4\r\n\r\ntext")
			} else {
				io.WriteString(c, "\r\n")
			}
			if status < 200 && status != 101 { // what is only informational has the real answer after it
				io.WriteString(c, "HTTP/1.1 418 Teapot\r\nContent-Length: 0\r\n\r\n")
			}
		}
	})
	h := newHandler(t, Config{URL: u})
	deadByDefault := map[int]bool{400: true, 413: true, 414: true, 415: true, 422: true, 431: true}
	for status := 100; status < 1000; status++ {
		current.Store(int64(status))
		err := h.Handle(t.Context(), message())
		want, texts := handlertest.Retry, []string{fmt.Sprintf("POST %s: %d", u, status)}
		switch {
		case status < 200 && status != 101:
			texts = []string{"418"}
		case status >= 200 && status <= 299:
			want, texts = handlertest.Ack, nil
		case status == 410:
			want.Suspend = true
		case deadByDefault[status]:
			want = handlertest.Dead
		case status >= 300 && status <= 399:
			texts = append(texts, "redirects are not followed")
		}
		if !handlertest.Want(t, err, want, texts...) {
			t.Fatalf("status %d", status)
		}
	}
}

func TestHandle_tables(t *testing.T) {
	var status atomic.Int64
	s := serve(t, func(w nethttp.ResponseWriter, _ *nethttp.Request) { w.WriteHeader(int(status.Load())) })
	check := func(cfg Config, wants map[int]supervise.Verdict) {
		t.Helper()
		cfg.URL = s.URL
		h := newHandler(t, cfg)
		for code, want := range wants {
			status.Store(int64(code))
			if !handlertest.Want(t, h.Handle(t.Context(), message()), want) {
				t.Errorf("%+v: status %d", cfg, code)
			}
		}
	}
	check(Config{Ack: "200-204, 409,410", Dead: ""}, map[int]supervise.Verdict{
		200: handlertest.Ack, 204: handlertest.Ack, 205: handlertest.Retry, 409: handlertest.Ack,
		410: handlertest.Ack, 400: handlertest.Dead,
	})
	check(Config{Dead: "404,500-599"}, map[int]supervise.Verdict{
		200: handlertest.Ack, 400: handlertest.Retry, 404: handlertest.Dead, 503: handlertest.Dead, 599: handlertest.Dead,
	})
	check(Config{Dead: "none"}, map[int]supervise.Verdict{400: handlertest.Retry, 410: {Kind: supervise.Retry, Suspend: true}})
	check(Config{Gone: "dead"}, map[int]supervise.Verdict{400: handlertest.Dead, 410: handlertest.Dead})
	check(Config{Dead: "410"}, map[int]supervise.Verdict{400: handlertest.Retry, 410: handlertest.Dead})
}

func TestHandle_answersOfOddForm(t *testing.T) {
	for name, tc := range map[string]struct {
		reply string
		want  supervise.Verdict
		texts []string
	}{
		"204 with a body":          {"HTTP/1.1 204 No\r\nContent-Length: 5\r\n\r\nhello", handlertest.Ack, nil},
		"HTTP/1.0":                 {"HTTP/1.0 200 OK\r\n\r\nhello", handlertest.Ack, nil},
		"error text in a 200":      {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nerror", handlertest.Ack, nil},
		"short body":               {"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nerror", handlertest.Retry, []string{"cannot read the reply of status 200: unexpected EOF"}},
		"short body of a 400":      {"HTTP/1.1 400 OK\r\nContent-Length: 50\r\n\r\nerror", handlertest.Dead, []string{"400 Bad Request: error"}},
		"broken chunks":            {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", handlertest.Retry, []string{"cannot read the reply of status 200: "}},
		"two lengths":              {"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx", handlertest.Retry, []string{"wait for response headers: "}},
		"no HTTP":                  {"SSH-2.0-OpenSSH_9\r\n", handlertest.Retry, []string{"wait for response headers: "}},
		"nothing":                  {"", handlertest.Retry, []string{"wait for response headers: EOF"}},
		"control bytes":            {"HTTP/1.1 500 X\r\nContent-Length: 12\r\n\r\n\x1b[31m\r\n\x00\xffabc", handlertest.Retry, []string{"500 Internal Server Error: [31m \uFFFDabc"}},
		"a long reason":            {"HTTP/1.1 500 " + strings.Repeat("x", 10_000) + "\r\nContent-Length: 0\r\n\r\n", handlertest.Retry, []string{"500 Internal Server Error"}},
		"a long malformed reply":   {"HTTP/1.1 " + strings.Repeat("\x1b", 10_000) + "\r\n\r\n", handlertest.Retry, []string{"malformed HTTP"}},
		"a long error":             {"HTTP/1.1 500 X\r\nContent-Length: 9000\r\n\r\n" + strings.Repeat("é", 4500), handlertest.Retry, []string{"éé…"}},
		"redirect with a location": {"HTTP/1.1 302 X\r\nLocation: http://127.0.0.1:1/canary\r\nContent-Length: 0\r\n\r\n", handlertest.Retry, []string{"302 Found (redirects are not followed)"}},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHandler(t, Config{URL: raw(t, func(c net.Conn) {
				if readRequest(bufio.NewReader(c)) == nil {
					io.WriteString(c, tc.reply)
				}
			})})
			err := h.Handle(t.Context(), message())
			handlertest.Want(t, err, tc.want, tc.texts...)
			if text := fmt.Sprint(err); len(text) > maxShown+100 || strings.ContainsAny(text, "\x1b\r\n\x00") || strings.Contains(text, "canary") {
				t.Errorf("%d bytes of text: %q", len(text), text)
			}
		})
	}
}

// Of an answer 256 bytes were shown: a cause that came after an id, a time and a trace in a JSON body was not seen.
func TestHandle_regressionTheCauseStoodBehindTheCut(t *testing.T) {
	body := `{"requestId":"` + strings.Repeat("0", 400) + `","message":"The card expired"}`
	h := newHandler(t, Config{URL: raw(t, func(c net.Conn) {
		if readRequest(bufio.NewReader(c)) == nil {
			fmt.Fprintf(c, "HTTP/1.1 402 X\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		}
	})})
	handlertest.Want(t, h.Handle(t.Context(), message()), handlertest.Retry, `"message":"The card expired"}`)
}

func TestHandle_redirectsAreNotFollowed(t *testing.T) {
	var hits atomic.Int64
	target := serve(t, func(nethttp.ResponseWriter, *nethttp.Request) { hits.Add(1) })
	for _, code := range []int{300, 301, 302, 303, 304, 305, 307, 308} {
		s := serve(t, func(w nethttp.ResponseWriter, r *nethttp.Request) {
			if r.URL.Path != "/" {
				hits.Add(1) // a loop
			}
			w.Header().Set("Location", target.URL+"/loop")
			w.WriteHeader(code)
		})
		h := newHandler(t, Config{URL: s.URL + "/", Headers: map[string]string{"Authorization": "Bearer canary"}})
		handlertest.Want(t, h.Handle(t.Context(), message()), handlertest.Retry, fmt.Sprint(code))
	}
	if n := hits.Load(); n != 0 {
		t.Errorf("%d requests at the target", n)
	}
}

func TestHandle_retryAfter(t *testing.T) {
	for _, code := range []int{429, 503} {
		for value, want := range map[string]supervise.Verdict{
			"":                              handlertest.Retry,
			"junk":                          handlertest.Retry,
			"0":                             handlertest.Retry,
			"120":                           {Kind: supervise.Retry, Delay: 2 * time.Minute, Pause: true},
			"9223372036854775808":           {Kind: supervise.Retry, Delay: time.Hour, Pause: true},
			"Fri, 31 Dec 9999 23:59:59 GMT": {Kind: supervise.Retry, Delay: time.Hour, Pause: true},
		} {
			s := serve(t, func(w nethttp.ResponseWriter, _ *nethttp.Request) {
				w.Header().Set("Retry-After", value)
				w.WriteHeader(code)
			})
			handlertest.Want(t, newHandler(t, Config{URL: s.URL}).Handle(t.Context(), message()), want, fmt.Sprint(code))
		}
	}
	s := serve(t, func(w nethttp.ResponseWriter, _ *nethttp.Request) {
		w.Header().Set("Retry-After", "120")
		w.WriteHeader(500)
	})
	handlertest.Want(t, newHandler(t, Config{URL: s.URL}).Handle(t.Context(), message()), handlertest.Retry, "500")
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	in := now.Add(90 * time.Second)
	for _, tc := range []struct {
		values []string
		want   time.Duration
	}{
		{nil, 0},
		{[]string{""}, 0},
		{[]string{"1"}, time.Second},
		{[]string{" 120 "}, 2 * time.Minute},
		{[]string{"3600"}, time.Hour},
		{[]string{"3601"}, time.Hour},
		{[]string{"1000000000"}, time.Hour},
		{[]string{"9223372036854775807"}, time.Hour},
		{[]string{"9223372036854775808"}, time.Hour},
		{[]string{"18446744073709551616"}, time.Hour},
		{[]string{strings.Repeat("9", 10_000)}, time.Hour},
		{[]string{"0"}, 0},
		{[]string{"000"}, 0},
		{[]string{"-1"}, 0},
		{[]string{"-9223372036854775808"}, 0},
		{[]string{"+5"}, 0},
		{[]string{"1.5"}, 0},
		{[]string{"1e9"}, 0},
		{[]string{"0x10"}, 0},
		{[]string{"١٢"}, 0}, // digits, but not HTTP's
		{[]string{"soon"}, 0},
		{[]string{"120, 60"}, 0},
		{[]string{"120", "60"}, 0},
		{[]string{"120", "120"}, 0},
		{[]string{in.Format(nethttp.TimeFormat)}, 90 * time.Second},
		{[]string{in.Format("Monday, 02-Jan-06 15:04:05 GMT")}, 90 * time.Second},
		{[]string{in.Format(time.ANSIC)}, 90 * time.Second},
		{[]string{now.Format(nethttp.TimeFormat)}, 0},
		{[]string{now.Add(-time.Hour).Format(nethttp.TimeFormat)}, 0},
		{[]string{now.AddDate(1, 0, 0).Format(nethttp.TimeFormat)}, time.Hour},
		{[]string{"Fri, 31 Dec 9999 23:59:59 GMT"}, time.Hour},
		{[]string{"Mon, 01 Jan 0001 00:00:00 GMT"}, 0},
		{[]string{in.Format(time.RFC3339)}, 0},
	} {
		if got := retryAfter(tc.values, now); got != tc.want {
			t.Errorf("%.60q: %v, want %v", tc.values, got, tc.want)
		}
	}
}

func FuzzRetryAfter(f *testing.F) {
	for _, s := range []string{"", "1", "-1", "1e9", "99999999999999999999", "Fri, 31 Dec 9999 23:59:59 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"} {
		f.Add(s, int64(0))
	}
	f.Fuzz(func(t *testing.T, value string, unix int64) {
		if d := retryAfter([]string{value}, time.Unix(unix, 0)); d < 0 || d > maxRetryAfter {
			t.Fatalf("%q: %v", value, d)
		}
	})
}

func TestParseStatuses(t *testing.T) {
	for text, want := range map[string]string{
		"": "[]", "none": "[]", "200": "[200]", "200-202": "[200 201 202]", " 599 , 200 - 201,200": "[200 201 599]", "200-200": "[200]",
	} {
		set, err := parseStatuses(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if got := fmt.Sprint(set.common(set)); got != want && !(want == "[]" && set.empty()) {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
	for _, text := range []string{
		",", "200,", "abc", "199", "100-200", "600", "200-600", "299-200", "200-", "-299", "2xx", "+200", "0200", "200-201-202", "200 201", "20０", "None",
	} {
		if _, err := parseStatuses(text); err == nil {
			t.Errorf("%q was taken", text)
		}
	}
}

func FuzzParseStatuses(f *testing.F) {
	for _, s := range []string{"200-299,409", "none", "200-", ",", "599-200"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		set, err := parseStatuses(text)
		if err != nil {
			return
		}
		var items []string
		for _, code := range set.common(set) {
			if !set.has(code) {
				t.Fatalf("%q: %d is in the set and is not", text, code)
			}
			items = append(items, fmt.Sprint(code))
		}
		again, err := parseStatuses(strings.Join(items, ","))
		if err != nil || *again != *set {
			t.Fatalf("%q: %v is another set, %v", text, items, err)
		}
	})
}

func TestHandle_errorsNameThePhase(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	badName := httptest.NewTLSServer(nil) // its certificate is for example.com and 127.0.0.1
	badName.Config.ErrorLog = quiet
	defer badName.Close()
	ca := caFile(t, badName)

	stop := errors.New("the route's time is over")
	for name, tc := range map[string]struct {
		cfg    Config
		server func(net.Conn, func()) // given, instead of a URL; the func ends ctx
		size   int
		texts  []string
	}{
		"resolve":     {cfg: Config{URL: "http://relay-test.invalid", ConnectTimeout: 300 * time.Millisecond}, texts: []string{": resolve: "}},
		"refused":     {cfg: Config{URL: "http://" + closed.Addr().String()}, texts: []string{": connect: ", "refused"}},
		"metadata":    {cfg: Config{URL: "http://169.254.169.254/latest"}, texts: []string{": connect: ", "is link-local"}},
		"unknown CA":  {cfg: Config{URL: badName.URL}, texts: []string{": TLS handshake: ", "unknown authority"}},
		"wrong name":  {cfg: Config{URL: strings.Replace(badName.URL, "127.0.0.1", "localhost", 1), TLS: TLS{CA: ca}}, texts: []string{": TLS handshake: ", "not localhost"}},
		"no TLS":      {cfg: Config{URL: "https"}, server: func(c net.Conn, _ func()) { io.WriteString(c, "HTTP/1.0 400 Bad\r\n\r\n"); rest(c) }, texts: []string{": TLS handshake: "}},
		"TLS stalls":  {cfg: Config{URL: "https", ConnectTimeout: 200 * time.Millisecond}, server: func(c net.Conn, _ func()) { rest(c) }, texts: []string{": TLS handshake: "}},
		"TLS at ctx":  {cfg: Config{URL: "https"}, server: func(c net.Conn, end func()) { c.Read(make([]byte, 1)); end(); rest(c) }, texts: []string{": TLS handshake: the route's time is over"}},
		"not read":    {server: func(c net.Conn, end func()) { c.Read(make([]byte, 1)); end() }, size: 64 << 20, texts: []string{": write request: the route's time is over"}},
		"no answer":   {server: func(c net.Conn, end func()) { readRequest(bufio.NewReader(c)); end(); rest(c) }, texts: []string{": wait for response headers: the route's time is over"}},
		"own timeout": {cfg: Config{HeaderTimeout: 100 * time.Millisecond}, server: func(c net.Conn, _ func()) { rest(c) }, texts: []string{": wait for response headers: "}},
		"reset": {server: func(c net.Conn, _ func()) {
			readRequest(bufio.NewReader(c))
			c.(*net.TCPConn).SetLinger(0)
		}, texts: []string{": wait for response headers: "}},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			if tc.server != nil {
				u := raw(t, func(c net.Conn) {
					tc.server(c, func() { cancel(stop) })
					if tc.size > 0 { // keep the connection, and do not read it
						<-t.Context().Done()
					}
				})
				if tc.cfg.URL == "https" {
					u = strings.Replace(u, "http:", "https:", 1)
				}
				tc.cfg.URL = u
			}
			m := message()
			m.Data = make([]byte, tc.size)
			err := newHandler(t, tc.cfg).Handle(ctx, m)
			want := handlertest.Retry
			if reached := slices.ContainsFunc(tc.texts, func(s string) bool { return strings.Contains(s, "write request") || strings.Contains(s, "wait for") }); !reached && ctx.Err() == nil {
				want = handlertest.NoAnswer
			}
			handlertest.Want(t, err, want, append(tc.texts, "POST "+tc.cfg.URL[:10])...)
		})
	}
}

func TestHandle_boundedAnswers(t *testing.T) {
	bomb := new(bytes.Buffer)
	z := gzip.NewWriter(bomb)
	z.Write(make([]byte, 16<<20))
	z.Close()
	block, letters := make([]byte, 64<<10), bytes.Repeat([]byte("x"), 4096)
	for name, tc := range map[string]struct {
		answer func(w io.Writer) error // repeated until it fails
		first  string
		want   supervise.Verdict
		ends   bool // by itself; otherwise ctx has to end it
		text   string
	}{
		"10 GiB with 200":   {first: "HTTP/1.1 200 OK\r\nContent-Length: 10737418240\r\n\r\n", answer: func(w io.Writer) error { _, err := w.Write(block); return err }, want: handlertest.Ack, ends: true},
		"10 GiB with 500":   {first: "HTTP/1.1 500 OK\r\nContent-Length: 10737418240\r\n\r\n", answer: func(w io.Writer) error { _, err := w.Write(block); return err }, want: handlertest.Retry, ends: true, text: "500"},
		"endless chunks":    {first: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", answer: func(w io.Writer) error { _, err := fmt.Fprintf(w, "4000\r\n%s\r\n", block[:0x4000]); return err }, want: handlertest.Ack, ends: true},
		"endless extension": {first: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;", answer: func(w io.Writer) error { _, err := io.WriteString(w, "aaaaaaaaaaaaaaaaaaaaaaaa"); return err }, want: handlertest.Retry, ends: true, text: "cannot read the reply"},
		"gzip bomb":         {first: fmt.Sprintf("HTTP/1.1 500 X\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%s", bomb.Len(), bomb), want: handlertest.Retry, ends: true, text: "500"},
		"endless headers": {first: "HTTP/1.1 200 OK\r\n", answer: func(w io.Writer) error {
			_, err := io.WriteString(w, "X-More: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n")
			return err
		}, want: handlertest.Retry, ends: true, text: "wait for response headers"},
		"one long header": {first: "HTTP/1.1 200 OK\r\nX: ", answer: func(w io.Writer) error { _, err := w.Write(letters); return err }, want: handlertest.Retry, ends: true, text: "wait for response headers"},
		"endless 1xx": {answer: func(w io.Writer) error {
			_, err := io.WriteString(w, "HTTP/1.1 103 Early Hints\r\nX: y\r\n\r\n")
			return err
		}, want: handlertest.Retry, ends: true, text: "wait for response headers"},
		"101 and silence":   {first: "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n", want: handlertest.Retry, ends: true, text: "101"},
		"stalls in headers": {first: "HTTP/1.1 200 OK\r\nX: ", want: handlertest.Retry, text: "wait for response headers"},
		"stalls in a 500":   {first: "HTTP/1.1 500 X\r\nContent-Length: 10\r\n\r\nwhy", want: handlertest.Retry, text: "500 Internal Server Error: why"},
	} {
		t.Run(name, func(t *testing.T) {
			u := raw(t, func(c net.Conn) {
				if readRequest(bufio.NewReader(c)) != nil {
					return
				}
				_, err := io.WriteString(c, tc.first)
				for err == nil && tc.answer != nil {
					err = tc.answer(c)
				}
				rest(c)
			})
			timeout := 100 * time.Millisecond
			if tc.ends {
				timeout = 20 * time.Second
			}
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			defer cancel()
			h := newHandler(t, Config{URL: u})
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			err := h.Handle(ctx, message())
			runtime.ReadMemStats(&after)
			handlertest.Want(t, err, tc.want, tc.text)
			if tc.ends != (ctx.Err() == nil) {
				t.Errorf("ctx: %v", ctx.Err())
			}
			// The server is in this process too; it repeats blocks that are made once.
			if grown := after.TotalAlloc - before.TotalAlloc; grown > 4<<20 {
				t.Errorf("%d bytes were allocated", grown)
			}
		})
	}
}

func TestHandle_slowReplyEndsWithCtx(t *testing.T) {
	u := raw(t, func(c net.Conn) {
		readRequest(bufio.NewReader(c))
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
		for tick := time.NewTicker(5 * time.Millisecond); ; <-tick.C {
			if _, err := c.Write([]byte("x")); err != nil {
				tick.Stop()
				return
			}
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	began := time.Now()
	handlertest.Want(t, newHandler(t, Config{URL: u}).Handle(ctx, message()), handlertest.Retry, "cannot read the reply of status 200: context deadline exceeded")
	if took := time.Since(began); took > slack {
		t.Errorf("took %v", took)
	}
}

func TestHandle_secretsStayOut(t *testing.T) {
	secret := func(base string) Config {
		return Config{URL: strings.Replace(base, "://", "://canary:canary@", 1) + "/canary?token=canary", Headers: map[string]string{"X-Key": "canary"}}
	}
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	for name, base := range map[string]string{
		"connect":  "http://" + closed.Addr().String(),
		"refused":  "http://169.254.1.1",
		"TLS":      "https" + strings.TrimPrefix(raw(t, func(c net.Conn) { io.WriteString(c, "no TLS\r\n"); rest(c) }), "http"),
		"EOF":      raw(t, func(net.Conn) {}),
		"junk":     raw(t, answer("junk\r\n\r\n")),
		"status":   raw(t, answer("HTTP/1.1 500 X\r\nContent-Length: 0\r\n\r\n")),
		"dead":     raw(t, answer("HTTP/1.1 400 X\r\nContent-Length: 0\r\n\r\n")),
		"redirect": raw(t, answer("HTTP/1.1 302 X\r\nLocation: /canary?canary\r\nContent-Length: 0\r\n\r\n")),
		"body": raw(t, func(c net.Conn) {
			readRequest(bufio.NewReader(c))
			io.WriteString(c, "HTTP/1.1 200 X\r\nContent-Length: 9\r\n\r\n")
		}),
	} {
		err := newHandler(t, secret(base)).Handle(t.Context(), message())
		if text := fmt.Sprintf("%v %+v", err, err); err == nil || strings.Contains(text, "canary") {
			t.Errorf("%s: %s", name, text)
		}
	}
	for _, u := range []string{"http://canary:can%zzary@h/", "http://h:canary", "http://u:ca/nary@h", "canary://h/canary", "http:///canary", "http://h/canary#canary", "http://h/{canary}", "\x7fcanary"} {
		if err := (Config{URL: u}).Validate(); err == nil || strings.Contains(err.Error(), "canary") || strings.Contains(err.Error(), "ca") && strings.Contains(err.Error(), "nary") {
			t.Errorf("%s: %v", u, err)
		}
	}
}

func TestHandle_connectionsAreKept(t *testing.T) {
	const slots, rounds = 16, 20
	for name, m := range map[string]*consumer.Msg{"direct": message(), "transport": large()} {
		t.Run(name, func(t *testing.T) { connectionsAreKept(t, m, slots, rounds) })
	}
}

func connectionsAreKept(t *testing.T, m *consumer.Msg, slots, rounds int) {
	var opened atomic.Int64
	s := httptest.NewUnstartedServer(nethttp.HandlerFunc(func(w nethttp.ResponseWriter, _ *nethttp.Request) { io.WriteString(w, "thanks") }))
	s.Config.ConnState = func(_ net.Conn, state nethttp.ConnState) {
		if state == nethttp.StateNew {
			opened.Add(1)
		}
	}
	s.Start()
	defer s.Close()
	h, err := New(Config{URL: s.URL}, slots)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Stop(t.Context())
	for range rounds {
		var wg sync.WaitGroup
		for range slots {
			wg.Go(func() {
				if err := h.Handle(t.Context(), m); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
	// net/http may dial for a request that then gets a connection that came free: a few more than slots is its way.
	if n := int(opened.Load()); n > 2*slots {
		t.Errorf("%d connections for %d slots", n, slots)
	}
}

func TestNew_ignoresProxies(t *testing.T) {
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy"} {
		t.Setenv(name, "http://127.0.0.1:1")
	}
	if h := newHandler(t, Config{URL: "http://192.0.2.1"}); h.transport.Proxy != nil {
		t.Error("the transport has a proxy")
	}
}

// reuse is a server whose connections the test closes at a chosen moment.
type reuse struct {
	*Handler
	requests atomic.Int64
	mu       sync.Mutex
	server   map[string]net.Conn // by the client's address
	closed   map[string]chan struct{}
	reply    func(n int64) string // "" closes the connection
}

// notingConn says when net/http has given it up.
type notingConn struct {
	net.Conn
	once   sync.Once
	closed chan struct{}
}

func (c *notingConn) Close() error { c.once.Do(func() { close(c.closed) }); return c.Conn.Close() }

func newReuse(t *testing.T) *reuse {
	r := &reuse{server: map[string]net.Conn{}, closed: map[string]chan struct{}{}}
	r.reply = func(int64) string { return "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n" }
	u := raw(t, func(c net.Conn) {
		r.mu.Lock()
		r.server[c.RemoteAddr().String()] = c
		r.mu.Unlock()
		for in := bufio.NewReader(c); readRequest(in) == nil; {
			text := r.reply(r.requests.Add(1))
			if text == "" {
				return
			}
			io.WriteString(c, text)
		}
	})
	r.Handler = newHandler(t, Config{URL: u})
	r.transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		noting := &notingConn{Conn: c, closed: make(chan struct{})}
		r.mu.Lock()
		r.closed[c.LocalAddr().String()] = noting.closed
		r.mu.Unlock()
		return &countingConn{Conn: noting}, nil
	}
	return r
}

// large is a message that goes through net/http's transport.
func large() *consumer.Msg {
	m := message()
	m.Data = make([]byte, maxDirect)
	return m
}

// cutReused returns a context in which every connection out of the pool is closed by the server, and seen to be closed by
// net/http, after it was chosen for a request and before a byte of that is written.
func (r *reuse) cutReused(ctx context.Context, cuts *atomic.Int64) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
		if !info.Reused {
			return
		}
		cuts.Add(1)
		client := info.Conn.LocalAddr().String()
		r.mu.Lock()
		server, closed := r.server[client], r.closed[client]
		r.mu.Unlock()
		server.Close()
		<-closed
	}})
}

// fill leaves n idle connections in the pool.
func (r *reuse) fill(t *testing.T, n int) {
	t.Helper()
	plain, all := r.reply, make(chan struct{})
	var arrived atomic.Int64
	r.reply = func(i int64) string {
		if arrived.Add(1) == int64(n) {
			close(all)
		}
		<-all // so that each request needs a connection of its own
		return plain(i)
	}
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			if err := r.Handle(t.Context(), large()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	r.reply = plain
	r.requests.Store(0)
}

// F75: the server closed the idle connection just before relay would have written to it. net/http repeats a POST only in
// some of these cases; in the others its error looks like any lost connection.
func TestHandle_serverClosedTheIdleConnection(t *testing.T) {
	r := newReuse(t)
	r.fill(t, 1)
	var cuts atomic.Int64
	handlertest.Want(t, r.Handle(r.cutReused(t.Context(), &cuts), large()), handlertest.Ack)
	if cuts.Load() != 1 || r.requests.Load() != 1 {
		t.Errorf("%d connections cut, %d requests arrived, want 1 and 1", cuts.Load(), r.requests.Load())
	}
}

func TestHandle_serverClosedEveryIdleConnection(t *testing.T) {
	r := newReuse(t)
	r.fill(t, maxResends+2)
	var cuts atomic.Int64
	err := r.Handle(r.cutReused(t.Context(), &cuts), large())
	handlertest.Want(t, err, handlertest.NotStarted, "write request")
	if cuts.Load() != maxResends+1 || r.requests.Load() != 0 {
		t.Errorf("%d connections cut, %d requests arrived", cuts.Load(), r.requests.Load())
	}
}

// Once the request is with the server nobody knows what it did: not repeated, and a failed attempt.
func TestHandle_serverClosedAfterTheRequest(t *testing.T) {
	r := newReuse(t)
	r.fill(t, 1)
	r.reply = func(int64) string { return "" }
	handlertest.Want(t, r.Handle(t.Context(), large()), handlertest.Retry, "wait for response headers")
	if n := r.requests.Load(); n != 1 {
		t.Errorf("the request arrived %d times", n)
	}
}

// A server that closes after each reply without saying so, as fast as the machine goes: whatever wins the race, a message
// that is acknowledged or not started arrived as often as that says, and no other more than once.
func TestHandle_keepAliveRace(t *testing.T) {
	var arrived atomic.Int64
	u := raw(t, func(c net.Conn) {
		if readRequest(bufio.NewReader(c)) == nil {
			arrived.Add(1)
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		}
	})
	h := newHandler(t, Config{URL: u})
	for range 300 {
		before := arrived.Load()
		switch v := handlertest.Verdict(h.Handle(t.Context(), message())); {
		case v.Kind == supervise.Ack && arrived.Load() == before+1:
		case v.Kind == supervise.Retry && !v.NotStarted && arrived.Load() <= before+1:
		case v.NotStarted && arrived.Load() == before:
		default:
			t.Fatalf("%+v, arrived %d times", v, arrived.Load()-before)
		}
	}
}

var quiet = newQuietLog()

func caFile(t *testing.T, s *httptest.Server) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ca.pem")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestHandle_https(t *testing.T) {
	proto := make(chan string, 1)
	s := httptest.NewUnstartedServer(nethttp.HandlerFunc(func(w nethttp.ResponseWriter, r *nethttp.Request) {
		if _, err := io.Copy(w, r.Body); err != nil {
			t.Error(err)
		}
		proto <- r.Proto
	}))
	s.EnableHTTP2 = true
	s.Config.ErrorLog = quiet
	s.StartTLS()
	t.Cleanup(s.Close)
	for name, tc := range map[string]TLS{"CA": {CA: caFile(t, s)}, "unverified": {InsecureSkipVerify: true}} {
		t.Run(name, func(t *testing.T) {
			h := newHandler(t, Config{URL: s.URL, TLS: tc})
			for range 3 {
				handlertest.Want(t, h.Handle(t.Context(), message()), handlertest.Ack)
				if p := <-proto; p != "HTTP/2.0" {
					t.Errorf("over %s", p)
				}
			}
		})
	}
}

func TestHandle_http2Failures(t *testing.T) {
	hold := make(chan struct{})
	s := httptest.NewUnstartedServer(nethttp.HandlerFunc(func(w nethttp.ResponseWriter, r *nethttp.Request) {
		switch r.Header.Get("Relay-Attempt") {
		case "1":
			panic(nethttp.ErrAbortHandler) // RST_STREAM
		case "2":
			w.WriteHeader(200)
			w.(nethttp.Flusher).Flush()
			panic(nethttp.ErrAbortHandler)
		case "3":
			w.WriteHeader(503)
			w.Write(make([]byte, 1<<20))
		case "4":
			hold <- struct{}{}
			<-r.Context().Done()
		}
	}))
	s.EnableHTTP2 = true
	s.Config.ErrorLog = quiet
	s.StartTLS()
	t.Cleanup(s.Close)
	h := newHandler(t, Config{URL: s.URL, TLS: TLS{CA: caFile(t, s)}})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-hold; cancel() }()
	for attempt, want := range map[int]string{
		1: "stream error", // before or after the end of the body was written
		2: "cannot read the reply of status 200", 3: "503 Service Unavailable", 4: ": context canceled",
	} {
		m := message()
		m.Attempt = attempt
		c := t.Context()
		if attempt == 4 {
			c = ctx
		}
		handlertest.Want(t, h.Handle(c, m), handlertest.Retry, want)
	}
}

func TestHandle_clientCertificate(t *testing.T) {
	s := httptest.NewUnstartedServer(nethttp.HandlerFunc(func(nethttp.ResponseWriter, *nethttp.Request) {}))
	s.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	s.Config.ErrorLog = quiet
	s.StartTLS()
	t.Cleanup(s.Close)
	cert, key := writePair(t)
	ca := caFile(t, s)
	handlertest.Want(t, newHandler(t, Config{URL: s.URL, TLS: TLS{CA: ca, Cert: cert, Key: key}}).Handle(t.Context(), message()), handlertest.Ack)
	handlertest.Want(t, newHandler(t, Config{URL: s.URL, TLS: TLS{CA: ca}}).Handle(t.Context(), message()), handlertest.Retry)
}

func TestNew_tlsFiles(t *testing.T) {
	dir := t.TempDir()
	empty, garbage := filepath.Join(dir, "empty"), filepath.Join(dir, "garbage")
	for path, text := range map[string]string{empty: "", garbage: "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cert, key := writePair(t)
	for want, c := range map[string]TLS{
		"tls.ca: open ":                        {CA: filepath.Join(dir, "missing")},
		"tls.ca: " + empty + " holds no PEM":   {CA: empty},
		"tls.ca: " + garbage + " holds no PEM": {CA: garbage},
		"tls.ca: read ":                        {CA: dir},
		"tls.cert: open ":                      {Cert: filepath.Join(dir, "missing"), Key: key},
		"tls.cert \"" + cert + "\" and tls.key \"" + empty + "\": tls: failed to find any PEM ": {Cert: cert, Key: empty},
	} {
		if _, err := New(Config{URL: "https://h", TLS: c}, 1); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	h := newHandler(t, Config{URL: "https://h", TLS: TLS{Cert: cert, Key: key}})
	if err := h.Check(t.Context()); err != nil {
		t.Error(err)
	}
	if err := os.Remove(key); err != nil {
		t.Fatal(err)
	}
	if err := h.Check(t.Context()); err == nil {
		t.Error("Check did not miss the key")
	}
}

// Too many open files spent an attempt of every message, and dead-lettered what had nothing to do with it.
func TestHandle_regressionNoDescriptors(t *testing.T) {
	s := serve(t, func(nethttp.ResponseWriter, *nethttp.Request) {})
	h := newHandler(t, Config{URL: s.URL})
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	none := syscall.Rlimit{Cur: 3, Max: limit.Max} // what is open stays open
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	err := h.Handle(t.Context(), message())
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	handlertest.Want(t, err, handlertest.NotStarted, "connect: ", "too many open files")
	handlertest.Want(t, h.Handle(t.Context(), message()), handlertest.Ack)
}

func TestOfThisMachine(t *testing.T) {
	dial := func(err error) error { return &net.OpError{Op: "dial", Err: os.NewSyscallError("socket", err)} }
	for _, err := range []error{
		dial(syscall.EMFILE), dial(syscall.ENFILE), dial(syscall.ENOBUFS), dial(syscall.EADDRNOTAVAIL), dial(syscall.ENOMEM),
		dial(&net.DNSError{Err: "server misbehaving", IsTemporary: true}),
	} {
		if !ofThisMachine(err) {
			t.Errorf("%v is taken for the endpoint's", err)
		}
	}
	for _, err := range []error{
		dial(syscall.ECONNREFUSED), dial(syscall.EHOSTUNREACH), dial(syscall.ETIMEDOUT), errors.New("EOF"),
		dial(&net.DNSError{Err: "no such host", IsNotFound: true}),
	} {
		if ofThisMachine(err) {
			t.Errorf("%v is taken for this machine's", err)
		}
	}
}

// The message tries to smuggle a second request, or to speak for relay.
func TestHandle_hostileHeaders(t *testing.T) {
	dumps := make(chan string, 1)
	u := raw(t, func(c net.Conn) {
		var dump bytes.Buffer
		req, err := nethttp.ReadRequest(bufio.NewReader(io.TeeReader(c, &dump)))
		if err != nil {
			t.Error(err)
			return
		}
		io.Copy(io.Discard, req.Body)
		io.WriteString(c, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
		dumps <- dump.String()
	})
	h := newHandler(t, Config{URL: u, ForwardHeaders: []string{"X-A", "X-B", "X-C", "X-D", "X-E"}})
	m := message()
	m.ID, m.Route = "a\r\nX-Evil: 1", "b\r\n\r\nGET / HTTP/1.1"
	m.Header = nats.Header{
		"Host": {"evil"}, "Content-Length": {"0"}, "Transfer-Encoding": {"chunked"}, "Connection": {"X-A"}, "Authorization": {"evil"},
		"Relay-Id": {"forged"}, "relay-attempt": {"99"}, "Content-Type": {"text/plain\r\nX-Evil: 1"}, "X-Evil": {"1"},
		"X-A": {"fine", "a\r\nX-Evil: 1", "nul\x00", "caf\xc3\xa9\tlatin\xe9"}, "X-B": {strings.Repeat("b", maxForwardedValue+1)},
		"X-C": {strings.Repeat("c", maxForwardedValue), strings.Repeat("c", maxForwardedValue), strings.Repeat("c", maxForwardedValue), strings.Repeat("c", maxForwardedValue)},
		"X-D": {""}, "X-E\r\nX-Evil": {"1"},
	}
	if err := h.Handle(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	dump := <-dumps
	head, body, _ := strings.Cut(dump, "\r\n\r\n")
	if body != "body" || strings.Contains(dump, "\nX-Evil") || strings.Contains(dump, "evil") || strings.Contains(dump, "forged") {
		t.Errorf("%.1000q", dump)
	}
	req, err := nethttp.ReadRequest(bufio.NewReader(strings.NewReader(head + "\r\n\r\n")))
	if err != nil {
		t.Fatal(err)
	}
	if got := req.Header["X-A"]; cmp.Diff([]string{"fine", "caf\xc3\xa9\tlatin\xe9"}, got) != "" {
		t.Errorf("X-A: %q", got)
	}
	if got := req.Header["X-D"]; cmp.Diff([]string{""}, got) != "" {
		t.Errorf("X-D: %q", got)
	}
	if b, c := len(req.Header["X-B"]), len(req.Header["X-C"]); b != 0 || c != 3 { // a fourth is past the bound of all
		t.Errorf("%d long values, %d of the bound", b, c)
	}
	if req.ContentLength != 4 || req.Header.Get("Relay-Attempt") != "3" || req.Header.Get("Content-Type") != "application/octet-stream" {
		t.Errorf("%+v", req)
	}
}

// A publisher chose the Content-Type of webhooks whose owner had not asked for it, and with it how the endpoint read the body.
func TestHandle_regressionContentTypeOfAPublisher(t *testing.T) {
	got := make(chan nethttp.Header, 1)
	s := serve(t, func(_ nethttp.ResponseWriter, r *nethttp.Request) { got <- r.Header })
	m := message()
	m.Header = nats.Header{"Content-Type": {"application/x-www-form-urlencoded"}}
	for want, cfg := range map[string]Config{
		"application/octet-stream":          {},
		"application/json":                  {Headers: map[string]string{"content-type": "application/json"}},
		"application/x-www-form-urlencoded": {ForwardHeaders: []string{"content-*"}},
		"text/plain":                        {ForwardHeaders: []string{"Content-Type"}, Headers: map[string]string{"Content-Type": "text/plain"}},
	} {
		cfg.URL = s.URL
		handlertest.Want(t, newHandler(t, cfg).Handle(t.Context(), m), handlertest.Ack)
		if values := (<-got)["Content-Type"]; cmp.Diff([]string{want}, values) != "" {
			t.Errorf("%q, want %s", values, want)
		}
	}
}

// Names by their beginning, or all: what frames a request, and what speaks in relay's name, is left out all the same.
func TestHandle_headersByPrefix(t *testing.T) {
	got := make(chan nethttp.Header, 1)
	s := serve(t, func(_ nethttp.ResponseWriter, r *nethttp.Request) { got <- r.Header })
	m := message()
	m.Header = nats.Header{
		"ce-id": {"7"}, "CE-Type": {"order"}, "cerberus": {"no"}, "Host": {"evil"}, "Transfer-Encoding": {"chunked"}, "content-length": {"0"}, "Relay-Id": {"evil"},
		"Authorization": {"evil"}, "Webhook-Id": {"evil"}, "X-Forwarded-For": {"evil"}, "Proxy-Authorization": {"evil"}, "bad name": {"evil"}, "bad\r\nX-Evil": {"evil"},
	}
	for entry, want := range map[string][]string{"ce-*": {"Ce-Id", "Ce-Type"}, "*": {"Ce-Id", "Ce-Type", "Cerberus"}} {
		handlertest.Want(t, newHandler(t, Config{URL: s.URL, ForwardHeaders: []string{entry}}).Handle(t.Context(), m), handlertest.Ack)
		header := <-got
		if strings.Contains(fmt.Sprint(header), "evil") {
			t.Errorf("%s: %v", entry, header)
		}
		for _, own := range []string{"Relay-Id", "Relay-Attempt", "Relay-Route", "Relay-Subject", "Relay-Deadline", "Content-Type", "Content-Length", "User-Agent"} {
			header.Del(own)
		}
		if diff := cmp.Diff(want, sortedKeys(header)); diff != "" {
			t.Errorf("%s: %s", entry, diff)
		}
	}
}

func TestContentType(t *testing.T) {
	for want, h := range map[string]nats.Header{
		"application/json":         {"Content-Type": {"application/json"}},
		"text/plain;charset=utf-8": {"CONTENT-type": {"text/plain;charset=utf-8"}},
		"application/octet-stream": nil,
		"text/first":               {"Content-Type": {"junk/;", "text/second"}, "content-type": {"text/first"}},
	} {
		if got := contentType(h); got != want {
			t.Errorf("%v: %q, want %q", h, got, want)
		}
	}
	for _, bad := range []string{"", "/", "a b/c", "text/plain\x00", "text/plain; x=\"\x01\"", strings.Repeat("a", maxForwardedValue) + "/b"} {
		if got := contentType(nats.Header{"Content-Type": {bad}}); got != "application/octet-stream" {
			t.Errorf("%q became %q", bad, got)
		}
	}
}

func FuzzEscape(f *testing.F) {
	f.Add("a.b")
	f.Add("%41 \x00é\xff")
	f.Fuzz(func(t *testing.T, s string) {
		e := escape(s)
		if back, err := url.PathUnescape(e); err != nil || back != s || !validValue(e) || strings.ContainsAny(e, " \t") {
			t.Fatalf("%q became %q and %q: %v", s, e, back, err)
		}
	})
}

func TestConfig_faults(t *testing.T) {
	ok := "http://127.0.0.1:1/"
	for want, c := range map[string]Config{
		"url: is required":                            {},
		"url: must begin with http":                   {URL: "ftp://h"},
		"url: must begin with http:":                  {URL: "127.0.0.1/x"},
		"url: must begin with http:/":                 {URL: "127.0.0.1:80/x"},
		"url: has no host":                            {URL: "http://:80/"},
		"url: holds {":                                {URL: "http://h/{1"},
		"url: has a fragment":                         {URL: "http://h/#x"},
		"url: is not a URL":                           {URL: "http://h:x/"},
		"method: must be":                             {URL: ok, Method: "GET"},
		"method: must be POST,":                       {URL: ok, Method: "post"},
		`headers: "a b" is not`:                       {URL: ok, Headers: map[string]string{"a b": ""}},
		"headers: relay-id is set":                    {URL: ok, Headers: map[string]string{"relay-id": "x"}},
		"headers: host is set":                        {URL: ok, Headers: map[string]string{"host": "x"}},
		"headers: the value of X":                     {URL: ok, Headers: map[string]string{"X": "canary\n"}},
		`forward_headers[1]: "" is not`:               {URL: ok, ForwardHeaders: []string{"X", ""}},
		"forward_headers[0]: authorization may not":   {URL: ok, ForwardHeaders: []string{"authorization"}},
		"forward_headers[0]: Transfer-encoding may":   {URL: ok, ForwardHeaders: []string{"Transfer-encoding"}},
		"forward_headers[0]: webhook-id may not":      {URL: ok, ForwardHeaders: []string{"webhook-id"}},
		"forward_headers[0]: X-Forwarded-For may not": {URL: ok, ForwardHeaders: []string{"X-Forwarded-For"}},
		"ack: \"2xx\" is not a status":                {URL: ok, Ack: "2xx"},
		"ack: must name":                              {URL: ok, Ack: "none"},
		"dead: \"700\" is not":                        {URL: ok, Dead: "700"},
		"dead: 204 is also in ack":                    {URL: ok, Dead: "204,500"},
		"connect_timeout: ":                           {URL: ok, ConnectTimeout: -1},
		"response_header_timeout: ":                   {URL: ok, HeaderTimeout: -1},
		"tls: cert and key":                           {URL: "https://h", TLS: TLS{Cert: "x"}},
		"tls: needs an https url":                     {URL: ok, TLS: TLS{CA: "x"}},
	} {
		err := c.Validate()
		if err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "canary") {
			t.Errorf("%v, want %q", err, want)
		}
		if _, newErr := New(c, 1); newErr == nil {
			t.Errorf("New took what has %v", err)
		}
	}
	all := Config{Method: "GET", Ack: "x", Dead: "y", ConnectTimeout: -1}
	if err := all.Validate(); strings.Count(fmt.Sprint(err), "\n") != 4 {
		t.Errorf("not all faults at once: %v", err)
	}
	if err := (Config{URL: ok, Headers: map[string]string{"Authorization": "Bearer x", "User-Agent": "me"}}).Validate(); err != nil {
		t.Error(err)
	}
}

// afterFuncContext is a context like the one of an attempt: none of the context package's own.
type afterFuncContext struct {
	context.Context
	done  chan struct{}
	after atomic.Pointer[func()]
}

func (c *afterFuncContext) Done() <-chan struct{} { return c.done }
func (c *afterFuncContext) Value(any) any         { return nil }
func (c *afterFuncContext) Err() error {
	select {
	case <-c.done:
		return context.DeadlineExceeded
	default:
		return nil
	}
}
func (c *afterFuncContext) AfterFunc(f func()) func() bool {
	c.after.Store(&f)
	return func() bool { return true }
}

// net/http starts a goroutine for each request that waits for the end of a context without an AfterFunc.
func TestHandle_contextOfARequestHasAnAfterFunc(t *testing.T) {
	arrived := make(chan struct{})
	s := httptest.NewServer(nethttp.HandlerFunc(func(_ nethttp.ResponseWriter, r *nethttp.Request) {
		close(arrived)
		_, _ = io.Copy(io.Discard, r.Body) // the server notices only then that the client has gone
		<-r.Context().Done()
	}))
	defer s.Close()
	h, err := New(Config{URL: s.URL}, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Stop(t.Context())
	ctx := &afterFuncContext{Context: t.Context(), done: make(chan struct{})}
	ended := make(chan error)
	go func() { ended <- h.Handle(ctx, &consumer.Msg{Data: []byte("x")}) }()
	<-arrived
	close(ctx.done)
	if f := ctx.after.Load(); f == nil {
		t.Error("nobody asked to be told")
	} else {
		(*f)()
	}
	if err := <-ended; !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v, want the context's error", err)
	}
}

func TestDeadline(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		at := time.Unix(rapid.Int64Range(0, 1<<33).Draw(t, "s"), rapid.Int64Range(0, 999_999_999).Draw(t, "ns"))
		at = at.In(time.FixedZone("", rapid.IntRange(-12, 12).Draw(t, "hours")*3600))
		if got, want := deadline(at), at.UTC().Format("2006-01-02T15:04:05.000Z07:00"); got != want {
			t.Fatalf("%s, want %s", got, want)
		}
	})
}

func TestContentType_isTheSameOneOfSeveralSpellings(t *testing.T) {
	h := nats.Header{"content-type": {"text/c"}, "Content-Type": {"text/a"}, "CONTENT-TYPE": {"broken;;="}, "Content-type": {}}
	for range 100 { // in whatever order the map is read
		if got := contentType(h); got != "text/a" {
			t.Fatalf("%s, want text/a", got)
		}
	}
}

// The body of an acknowledging answer is the result, up to what the route allows; that of a failure is none.
func TestHandle_bodyIsTheResult(t *testing.T) {
	body, status := "", 200
	s := serve(t, func(w nethttp.ResponseWriter, _ *nethttp.Request) {
		w.Header().Set("Content-Type", "text/csv")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	})
	h := newHandler(t, Config{URL: s.URL})
	for _, c := range []struct {
		status int
		body   string
		want   string
		cut    bool
	}{
		{200, "", "", false}, {200, "ok", "ok", false}, {202, "12345678", "12345678", false}, {200, "123456789", "12345678", true},
		{200, strings.Repeat("x", 1<<20), "xxxxxxxx", true}, {500, "why", "", false},
	} {
		status, body = c.status, c.body
		m := message()
		r := consumer.RecordReply(m, 8)
		if err := h.Handle(t.Context(), m); (err == nil) != (c.status < 300) {
			t.Fatalf("%d: %v", c.status, err)
		}
		if got, cut := r.Data(); string(got) != c.want || cut != c.cut {
			t.Errorf("%d, %d bytes: got %q, cut %v", c.status, len(c.body), got, cut)
		}
		if got := r.Header().Get("Content-Type"); c.status < 300 && got != "text/csv" {
			t.Errorf("Content-Type: %q", got)
		}
	}
}
