package http

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	nethttp "net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/consumer/handler/internal/handlertest"
)

// both are two handlers of the same config: the second one has all requests go through net/http's transport.
func both(t testing.TB, cfg Config) (viaDirect, viaTransport *Handler) {
	viaDirect, viaTransport = newHandler(t, cfg), newHandler(t, cfg)
	if viaDirect.direct == nil {
		t.Fatal("no request goes directly")
	}
	viaTransport.direct = nil
	return viaDirect, viaTransport
}

// Whatever a message has, the endpoint gets the same request on both ways.
func TestDirect_sendsWhatNetHTTPSends(t *testing.T) {
	got := make(chan string, 1)
	s := serve(t, func(_ nethttp.ResponseWriter, r *nethttp.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		r.Header.Del("Relay-Deadline")
		var b strings.Builder
		fmt.Fprintln(&b, r.Method, r.RequestURI, r.Host, r.Proto, r.ContentLength, r.TransferEncoding, r.Close)
		for _, name := range slices.Sorted(maps.Keys(r.Header)) {
			fmt.Fprintf(&b, "%s: %q\n", name, r.Header[name])
		}
		fmt.Fprintf(&b, "%x", body)
		got <- b.String()
	})
	cfg := Config{URL: strings.Replace(s.URL, "://", "://joe:s%20ecret@", 1) + "/a b/{2}/%2f?q={1}&r={subject}", ForwardHeaders: []string{"*"}, Headers: map[string]string{"X-Own": "1 2"}}
	cfg.URL = strings.Replace(cfg.URL, "a b", "a%20b", 1)
	viaDirect, viaTransport := both(t, cfg)
	rapid.Check(t, func(rt *rapid.T) {
		m := message()
		m.Subject = rapid.StringMatching(`[a-z]{1,4}\.[a-z/?& é"%]{1,8}`).Draw(rt, "subject")
		m.ID = rapid.StringMatching(`[ -~é]{0,12}`).Draw(rt, "id")
		m.Data = rapid.SliceOfN(rapid.Byte(), 0, 200).Draw(rt, "data")
		m.Header = nats.Header{}
		for range rapid.IntRange(0, 4).Draw(rt, "headers") {
			name := rapid.StringMatching(`(X-[a-z]{1,3}|content-type|Accept)`).Draw(rt, "name")
			m.Header[name] = append(m.Header[name], rapid.StringMatching("[ -~\té]{0,9}").Draw(rt, "value"))
		}
		var seen [2]string
		for i, h := range []*Handler{viaDirect, viaTransport} {
			if err := h.Handle(t.Context(), m); err != nil {
				rt.Fatal(err)
			}
			seen[i] = <-got
		}
		if seen[0] != seen[1] {
			rt.Fatalf("directly\n%s\n\nby net/http\n%s", seen[0], seen[1])
		}
	})
}

// With an idle connection at hand the request was written although its context had ended.
func TestDirect_regressionNothingIsSentAfterTheEnd(t *testing.T) {
	var requests atomic.Int64
	s := serve(t, func(nethttp.ResponseWriter, *nethttp.Request) { requests.Add(1) })
	h, _ := both(t, Config{URL: s.URL})
	const n = 50
	for range n {
		ctx, cancel := context.WithCancel(t.Context())
		if err := h.Handle(ctx, message()); err != nil {
			t.Fatal(err)
		}
		cancel()
		if err := h.Handle(ctx, message()); err == nil {
			t.Fatal("handled")
		}
	}
	s.Close() // waits for requests
	if got := requests.Load(); got != n {
		t.Errorf("%d requests, want %d", got, n)
	}
}

// Whatever an endpoint answers, whole or cut anywhere, the verdict is the same on both ways.
func TestDirect_judgesAsNetHTTPDoes(t *testing.T) {
	var next atomic.Pointer[[]byte]
	u := raw(t, func(c net.Conn) {
		in := bufio.NewReader(c)
		for readRequest(in) == nil {
			if _, err := c.Write(*next.Load()); err != nil || bytes.HasSuffix(*next.Load(), []byte("\x00")) {
				return
			}
		}
	})
	viaDirect, viaTransport := both(t, Config{URL: u})
	rapid.Check(t, func(rt *rapid.T) {
		text := rapid.SampledFrom([]string{"", "HTTP/1.1 100 Continue\r\n\r\n", "HTTP/1.1 103 Early\r\nLink: x\r\n\r\n"}).Draw(rt, "before") +
			rapid.SampledFrom([]string{"HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "HTTP", ""}).Draw(rt, "proto") + " " +
			rapid.SampledFrom([]string{"200 OK", "204 No Content", "304", "400 Bad", "410 Gone", "429 Slow", "500 X", "503 X", "99", "abc"}).Draw(rt, "status") + "\r\n"
		for range rapid.IntRange(0, 3).Draw(rt, "headers") {
			text += rapid.SampledFrom([]string{"Retry-After: 3", "Connection: close", "Connection: keep-alive", "X: y", ": z", "Content-Type: a/b"}).Draw(rt, "header") + "\r\n"
		}
		text += rapid.SampledFrom([]string{
			"Content-Length: 0\r\n\r\n", "Content-Length: 3\r\n\r\nabc", "Content-Length: 3\r\n\r\nabcd", "Content-Length: 9\r\n\r\nabc\x00", "\r\n\x00", "\r\nrest\x00",
			"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nTrailer: x\r\n\r\n",
			"Transfer-Encoding: chunked\r\n\r\nz\r\n\x00", "Content-Length: -1\r\n\r\n", "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabc\x00",
		}).Draw(rt, "rest")
		if rapid.Bool().Draw(rt, "cut") {
			text = text[:rapid.IntRange(0, len(text)).Draw(rt, "at")] + "\x00"
		}
		b := []byte(text)
		next.Store(&b)
		var kinds [2]string
		for i, h := range []*Handler{viaDirect, viaTransport} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			v := handlertest.Verdict(h.Handle(ctx, message()))
			cancel()
			kinds[i] = fmt.Sprint(v.Kind, v.Delay, v.NotStarted, v.NoAnswer, v.Suspend)
			// What is left of this answer is not the next one's.
			_ = h.Stop(t.Context())
		}
		if kinds[0] != kinds[1] {
			rt.Fatalf("%q: %s directly, %s by net/http", text, kinds[0], kinds[1])
		}
	})
}

// The server closes what is idle, or sends something there that nobody asked for: the next request goes out on another
// connection, and no attempt is spent.
func TestDirect_idleConnectionsThatEnded(t *testing.T) {
	for name, end := range map[string]func(net.Conn){
		"closed": func(c net.Conn) { c.Close() },
		"reset":  func(c net.Conn) { _ = c.(*net.TCPConn).SetLinger(0); c.Close() },
		"speaks": func(c net.Conn) {
			_, _ = io.WriteString(c, "HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")
		},
	} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			var conns []net.Conn
			var arrived atomic.Int64
			u := raw(t, func(c net.Conn) {
				mu.Lock()
				conns = append(conns, c)
				mu.Unlock()
				for in := bufio.NewReader(c); readRequest(in) == nil; {
					arrived.Add(1)
					_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
				}
			})
			h := newHandler(t, Config{URL: u})
			const requests = 20
			for range requests {
				handlertest.Want(t, h.Handle(t.Context(), message()), handlertest.Ack)
				mu.Lock()
				c := conns[len(conns)-1]
				mu.Unlock()
				end(c)
				time.Sleep(5 * time.Millisecond) // it is on its way
			}
			if n := arrived.Load(); n != requests {
				t.Errorf("%d requests arrived, want %d", n, requests)
			}
		})
	}
}

// Nobody gets the answer to another one's request, in whatever order attempts end, time out and come again.
func TestDirect_answersAreNotMixedUp(t *testing.T) {
	s := serve(t, func(w nethttp.ResponseWriter, r *nethttp.Request) {
		body, _ := io.ReadAll(r.Body)
		time.Sleep(time.Duration(rand.IntN(3)) * time.Millisecond)
		w.WriteHeader(500)
		_, _ = fmt.Fprintf(w, "it was %s.", body)
	})
	h := newHandler(t, Config{URL: s.URL})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 100 {
				m := message()
				m.Data = fmt.Appendf(nil, "%d-%d", i, j)
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rand.IntN(4000))*time.Microsecond)
				err := h.Handle(ctx, m)
				if err == nil || ctx.Err() == nil && !strings.Contains(err.Error(), fmt.Sprintf("it was %s.", m.Data)) {
					t.Errorf("%s: %v", m.Data, err)
				}
				cancel()
			}
		})
	}
	wg.Wait()
}

func TestDirect_idleConnectionsAreClosedInTime(t *testing.T) {
	s := serve(t, func(nethttp.ResponseWriter, *nethttp.Request) {})
	h := newHandler(t, Config{URL: s.URL})
	handlertest.Want(t, h.Handle(t.Context(), message()), handlertest.Ack)
	d := h.direct
	if d.tidy == nil || len(d.idle) != 1 {
		t.Fatalf("%d idle connections, timer %v", len(d.idle), d.tidy)
	}
	d.expire()
	if len(d.idle) != 1 {
		t.Fatal("a connection was closed before its time")
	}
	d.idle[0].since = time.Now().Add(-idleTimeout)
	d.expire()
	if len(d.idle) != 0 || d.tidy != nil {
		t.Errorf("%d idle connections, timer %v", len(d.idle), d.tidy)
	}
}
