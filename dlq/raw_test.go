package dlq

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/natstest"
)

// readOnly is a connection that says what it is given.
type readOnly struct {
	net.Conn
	io.Reader
}

func (r readOnly) Read(p []byte) (int, error) { return r.Reader.Read(p) }

func readRaw(t *testing.T, says io.Reader, at int) ([]byte, error) {
	t.Helper()
	c, err := newRawConn(readOnly{Reader: says}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var all []byte
	for p := make([]byte, at); ; {
		n, err := c.Read(p)
		all = append(all, p[:n]...)
		if err != nil {
			_, again := c.Read(p)
			if !errors.Is(again, err) {
				t.Errorf("after %v: %v", err, again)
			}
			return all, err
		}
	}
}

func raw(header, data string) string {
	return string(binary.BigEndian.AppendUint32(nil, uint32(len(header)))) + header + data
}

func TestRawConn(t *testing.T) {
	header := "NATS/1.0\r\nA: 1\r\n\r\n"
	long := strings.Repeat("MSG x 1 5\r\nHMSG ", 10_000) // not lines: data
	for _, c := range []struct {
		name, says, want string
		err              error
	}{
		{"other lines", "INFO {}\r\nPING\r\nPONG\r\n+OK\r\n-ERR 'x'\r\n", "INFO {}\r\nPING\r\nPONG\r\n+OK\r\n-ERR 'x'\r\n", io.EOF},
		{"message", "MSG a.b 12 5\r\nhello\r\nPING\r\n", "MSG a.b 12 9\r\n" + raw("", "hello") + "\r\nPING\r\n", io.EOF},
		{"empty message", "MSG a 1 0\r\n\r\n", "MSG a 1 4\r\n" + raw("", "") + "\r\n", io.EOF},
		{"headers", "HMSG a 1 r.x 18 23\r\n" + header + "hello\r\nPING\r\n", "MSG a 1 r.x 27\r\n" + raw(header, "hello") + "\r\nPING\r\n", io.EOF},
		{"headers only", "HMSG a 1 18 18\r\n" + header + "\r\n", "MSG a 1 22\r\n" + raw(header, "") + "\r\n", io.EOF},
		{"data like lines", fmt.Sprintf("HMSG a 1 18 %d\r\n%s\r\nPING\r\n", 18+len(long), header+long),
			fmt.Sprintf("MSG a 1 %d\r\n%s\r\nPING\r\n", 22+len(long), raw(header, long)), io.EOF},
		{"more headers than data", "PING\r\nHMSG a 1 6 5\r\nhello\r\n", "PING\r\n", errNotNATS},
		{"negative", "MSG a 1 -5\r\nhello\r\n", "", errNotNATS},
		{"huge", "MSG a 1 99999999999999999999\r\n", "", errNotNATS},
		{"no length", "MSG \r\n", "", errNotNATS},
		{"TLS", "INFO {}\r\n\x16\x03\x01", "INFO {}\r\n", errNotNATS},
		{"cut off", "MSG a 1 5\r\nhel", "MSG a 1 9\r\n" + raw("", "hel"), io.EOF},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, at := range []int{1, 7, 1 << 20} {
				for _, says := range []io.Reader{strings.NewReader(c.says), iotest.OneByteReader(strings.NewReader(c.says))} {
					got, err := readRaw(t, says, at)
					if string(got) != c.want || !errors.Is(err, c.err) {
						t.Errorf("%d at a time: %.100q, %v, want %.100q", at, got, err, c.want)
					}
				}
			}
		})
	}
}

// FuzzRawConn: what is read does not depend on the pieces in which it comes.
func FuzzRawConn(f *testing.F) {
	f.Add([]byte("PING\r\nHMSG a 1 r.x 18 23\r\nNATS/1.0\r\nA: 1\r\n\r\nhello\r\nMSG x 1 1\r\n.\r\n"), uint8(3))
	f.Add([]byte("MSG\r\nHMSG a 1\r\n"), uint8(1))
	f.Fuzz(func(t *testing.T, says []byte, at uint8) {
		want, err1 := readRaw(t, bytes.NewReader(says), 1<<16)
		got, err2 := readRaw(t, iotest.OneByteReader(bytes.NewReader(says)), int(at)+1)
		if !bytes.Equal(want, got) || !errors.Is(err1, err2) {
			t.Errorf("%q, %v; in pieces %q, %v", want, err1, got, err2)
		}
		_, _, _ = splitRaw(says)
	})
}

// connections are the numbers of those that have the server's stream in use, oldest first.
func connections(t *testing.T, srv *natstest.Server) (ids []uint64) {
	t.Helper()
	z, err := srv.Native().Connz(&server.ConnzOptions{Sort: server.ByCid})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range z.Conns {
		ids = append(ids, c.Cid)
	}
	return ids
}

func open(t *testing.T, nc *nats.Conn) (*Store, jetstream.JetStream) {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.Context(), js, Config{})
	if err != nil {
		t.Fatal(err)
	}
	return s, js
}

// Whatever is stored, a listing over a connection of its own finds the same.
func TestList_long(t *testing.T) {
	srv := natstest.Start(t)
	var called atomic.Int32
	nc := srv.Conn(t, nats.ClosedHandler(func(*nats.Conn) { called.Add(1) }), nats.DisconnectErrHandler(func(*nats.Conn, error) { called.Add(1) }))
	s, js := open(t, nc)
	const n = 300
	for seq := range uint64(n) {
		e := entry(seq + 1)
		e.LastError = strings.Repeat("x", int(seq)) + "é"
		e.Data = bytes.Repeat([]byte("\r\n"), int(seq%7*seq%70))
		if seq%3 == 0 {
			e.Reason, e.Header, e.Subject = Rejected, nil, "orders.\xff"
		}
		put(t, s, e)
		if seq%50 == 0 {
			for _, h := range []nats.Header{nil, {"Relay-Format": {"1", "1"}}} {
				m := &nats.Msg{Subject: "relay.dlq.stranger", Header: h, Data: []byte("NATS/1.0\r\n\r\n")}
				if _, err := js.PublishMsg(t.Context(), m); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	wild, err := srv.InProcessConn()
	if err != nil {
		t.Fatal(err)
	}
	go io.Copy(io.Discard, wild)
	acks, err := nc.SubscribeSync(nc.NewInbox())
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(wild, "CONNECT {\"headers\":true,\"verbose\":false}\r\n")
	for _, header := range []string{
		"NATS/1.0\r\nno colon\r\n\r\n", "NATS/1.0 404 x\r\n\r\n", "NATS/1.0\r\nRelay-Reason: a\r\n\r\nRelay-Reason: b\r\n\r\n", "NATS/1.0\r\n:\r\n\r\n",
		"NATS/1.0\r\nRelay-Reason: dead\r\nno end", "no header at all",
	} {
		fmt.Fprintf(wild, "HPUB relay.dlq.stranger %s %d %d\r\n%sx\r\n", acks.Subject, len(header), len(header)+1, header)
		if m, err := acks.NextMsg(10 * time.Second); err != nil || !strings.Contains(string(m.Data), `"seq"`) {
			t.Fatalf("%q: %v, %v", header, m, err)
		}
	}
	list := func(long uint64, f Filter) (entries []Entry, faults []string) {
		s.long = long
		for e, err := range s.List(t.Context(), f) {
			var fault *EntryError
			switch {
			case errors.As(err, &fault):
				faults = append(faults, err.Error())
			case err != nil:
				t.Fatal(err)
			default:
				entries = append(entries, e)
			}
			if own := len(connections(t, srv)) - 2; long < 100 && len(entries) == n-10 && own < 1 {
				t.Errorf("%d connections of its own", own)
			}
		}
		return entries, faults
	}
	for _, f := range []Filter{
		{}, {WithBody: true}, {Reason: Rejected}, {Reason: Rejected, WithBody: true}, {Text: "xxé"}, {MinAttempts: 21}, {Route: "billing"},
		{Subject: "orders.>"}, {Limit: 250, After: 7},
	} {
		want, wantFaults := list(longListing, f)
		got, faults := list(20, f)
		if d := cmp.Diff(want, got, cmp.AllowUnexported(Entry{}, ref{})); d != "" {
			t.Errorf("%+v: %s", f, d)
		}
		if d := cmp.Diff(wantFaults, faults); d != "" {
			t.Errorf("%+v: %s", f, d)
		}
	}
	if all, faults := list(20, Filter{}); len(all) != n || len(faults) != 18 {
		t.Errorf("%d entries and %d faults", len(all), len(faults))
	}
	if own := len(connections(t, srv)) - 2; own != 0 || called.Load() != 0 {
		t.Errorf("%d connections are left, %d callbacks were called", own, called.Load())
	}
}

// The connection of a listing goes down, and another time it cannot be had.
func TestList_longGoesOn(t *testing.T) {
	const n = 3000
	fill := func(t *testing.T, nc *nats.Conn) *Store {
		s, js := open(t, nc)
		for seq := range uint64(n) {
			e := entry(seq + 1)
			m := &nats.Msg{Subject: fmt.Sprintf("relay.dlq.billing.ORDERS.%d-0-0.x", seq), Header: encode(e)}
			if _, err := js.PublishMsgAsync(m); err != nil {
				t.Fatal(err)
			}
		}
		<-js.PublishAsyncComplete()
		s.long = 100
		return s
	}
	// all lists, and calls at when so many have come.
	all := func(t *testing.T, s *Store, at int, call func()) {
		count := uint64(0)
		for e, err := range s.List(t.Context(), Filter{}) {
			if err != nil {
				t.Fatal(err)
			}
			if count++; e.Sequence != count {
				t.Fatalf("sequence %d at place %d", e.Sequence, count)
			}
			if int(count) == at {
				call()
			}
		}
		if count != n {
			t.Errorf("%d entries, want %d", count, n)
		}
	}
	t.Run("broken", func(t *testing.T) {
		srv := natstest.Start(t)
		s := fill(t, srv.Conn(t))
		all(t, s, 500, func() {
			ids := connections(t, srv)
			if len(ids) != 2 {
				t.Fatalf("%d connections", len(ids))
			}
			if err := srv.Native().DisconnectClientByID(ids[1]); err != nil {
				t.Fatal(err)
			}
		})
	})
	t.Run("refused", func(t *testing.T) {
		srv := natstest.Start(t, natstest.WithOptions(func(o *server.Options) { o.MaxConn = 1 }))
		all(t, fill(t, srv.Conn(t)), 500, func() {
			if ids := connections(t, srv); len(ids) != 1 {
				t.Errorf("%d connections", len(ids))
			}
		})
	})
	t.Run("TLS", func(t *testing.T) {
		https := httptest.NewTLSServer(nil) // for its certificate
		defer https.Close()
		srv := natstest.Start(t, natstest.WithListen(), natstest.WithOptions(func(o *server.Options) {
			o.TLS, o.TLSConfig = true, &tls.Config{Certificates: https.TLS.Certificates}
		}))
		nc, err := nats.Connect(srv.URL(), nats.Secure(https.Client().Transport.(*http.Transport).TLSClientConfig))
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		all(t, fill(t, nc), 500, func() {
			if ids := connections(t, srv); len(ids) != 1 {
				t.Errorf("%d connections", len(ids))
			}
		})
	})
}

type onlyDial struct{ dialed []string }

func (d *onlyDial) Dial(network, address string) (net.Conn, error) {
	d.dialed = append(d.dialed, address)
	return net.Dial(network, address)
}

type contextDial struct{ onlyDial }

func (d *contextDial) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	d.dialed = append(d.dialed, "with context")
	return new(net.Dialer).DialContext(ctx, network, address)
}

func TestRawConnect(t *testing.T) {
	srv := natstest.Start(t, natstest.WithListen(), natstest.WithOptions(func(o *server.Options) { o.Username, o.Password = "u", "p" }))
	host := strings.TrimPrefix(srv.URL(), "nats://")
	only, with := new(onlyDial), new(contextDial)
	for _, c := range []struct {
		name string
		url  string
		opts []nats.Option
	}{
		{"user of the URL", "nats://u:p@" + host, nil},
		{"user of the options", srv.URL(), []nats.Option{nats.UserInfo("u", "p")}},
		{"first server down", "nats://u:p@127.0.0.1:1,nats://u:p@" + host, nil},
		{"dialer", srv.URL(), []nats.Option{nats.UserInfo("u", "p"), nats.SetCustomDialer(only)}},
		{"dialer with a context", srv.URL(), []nats.Option{nats.UserInfo("u", "p"), nats.SetCustomDialer(with)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			nc, err := nats.Connect(c.url, c.opts...)
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			own, err := rawConnect(t.Context(), nc)
			if err != nil {
				t.Fatal(err)
			}
			defer own.Close()
			sub, err := own.SubscribeSync("x")
			if err != nil {
				t.Fatal(err)
			}
			if err := own.Flush(); err != nil {
				t.Fatal(err)
			}
			if err := nc.PublishMsg(&nats.Msg{Subject: "x", Header: nats.Header{"A": {"1"}}, Data: []byte("hello")}); err != nil {
				t.Fatal(err)
			}
			m, err := sub.NextMsg(10 * time.Second)
			if err != nil {
				t.Fatal(err)
			}
			header, data, err := splitRaw(m.Data)
			if err != nil || string(header) != "NATS/1.0\r\nA: 1\r\n\r\n" || string(data) != "hello" || m.Header != nil {
				t.Errorf("%q, %v", m.Data, err)
			}
		})
	}
	if d := cmp.Diff([]string{host, host}, only.dialed); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{host, "with context"}, with.dialed); d != "" {
		t.Error(d)
	}
	nc, err := nats.Connect("nats://u:p@" + host)
	if err != nil {
		t.Fatal(err)
	}
	nc.Close()
	if _, err := rawConnect(t.Context(), nc); !errors.Is(err, errNoRaw) {
		t.Errorf("closed: %v", err)
	}
}
