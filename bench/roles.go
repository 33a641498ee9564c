package main

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// node is a nats-server of a cluster.
type node struct {
	Name   string
	Port   int   // of its routes
	Routes []int // ports of all
}

// serveNATS is a nats-server with JetStream on a file store of its own, alone or in a cluster.
func serveNATS(arg string) error {
	var in *node
	if err := json.Unmarshal([]byte(arg), &in); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "relay-bench-nats-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	opts := &server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: dir, NoSigs: true, NoLog: true,
	}
	if in != nil {
		opts.ServerName, opts.Cluster = in.Name, server.ClusterOpts{Name: "bench", Host: "127.0.0.1", Port: in.Port}
		for _, port := range in.Routes {
			opts.Routes = append(opts.Routes, &url.URL{Scheme: "nats-route", Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(port))})
		}
	}
	s, err := server.NewServer(opts)
	if err != nil {
		return err
	}
	go s.Start()
	if !s.ReadyForConnections(10 * time.Second) {
		return errors.New("nats-server is not ready")
	}
	if err := say(s.ClientURL()); err != nil {
		return err
	}
	untilAsked()
	s.Shutdown()
	s.WaitForShutdown()
	return nil
}

// serveEndpoint is the peer of a webhook: it reads the body and says 200. Over TLS it takes HTTP/2 only. Where messages are counted it says at the end
// how many it saw, each of them once.
func serveEndpoint(arg string) error {
	var h handlerSpec
	if err := json.Unmarshal([]byte(arg), &h); err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	var mu sync.Mutex
	seen := make(map[uint64]bool)
	scheme := "http"
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if h.Counted {
			head := make([]byte, stampLen)
			if _, err := io.ReadFull(r.Body, head); err == nil {
				_, n := stampOf(head)
				mu.Lock()
				seen[n] = true
				mu.Unlock()
			}
		}
		_, _ = io.Copy(io.Discard, r.Body)
		if h.H2 && r.ProtoMajor != 2 {
			w.WriteHeader(http.StatusHTTPVersionNotSupported)
		}
	})}
	serve := s.Serve
	if h.H2 {
		own, err := certificate()
		if err != nil {
			return err
		}
		scheme, s.TLSConfig = "https", &tls.Config{Certificates: []tls.Certificate{own}}
		serve = func(l net.Listener) error { return s.ServeTLS(l, "", "") }
	}
	go func() { _ = serve(l) }()
	if err := say(scheme + "://" + l.Addr().String() + "/hook"); err != nil {
		return err
	}
	untilAsked()
	mu.Lock()
	defer mu.Unlock()
	if h.Counted {
		_ = say(len(seen)) // nobody listens after a turn that failed
	}
	return s.Close()
}

// certificate is one that nobody has a reason to trust.
func certificate() (tls.Certificate, error) {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		return tls.Certificate{}, err
	}
	like := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(24 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, like, like, public, private)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private}, err
}

// pace is what a publisher does: so many messages a second for so long, or as many as it can with a rate of zero.
type pace struct {
	URL      string
	Subjects int
	Size     int
	Rate     float64
	For      time.Duration
	Seed     uint64
}

// paced is what it did.
type paced struct {
	Sent    int
	Seconds float64
	Late    time.Duration // the furthest it was behind its schedule
}

// publish publishes at a pace that does not depend on who consumes, each message with its time. At most publishWindow are
// unconfirmed: more would be dropped by the server one day.
func publish(arg string) error {
	var p pace
	if err := json.Unmarshal([]byte(arg), &p); err != nil {
		return err
	}
	nc, err := nats.Connect(p.URL)
	if err != nil {
		return err
	}
	defer nc.Close()
	pub, err := newPublisher(nc, p.Subjects, p.Size, p.Seed)
	if err != nil {
		return err
	}
	begin := time.Now()
	var r paced
	for now := begin; now.Sub(begin) < p.For; now = time.Now() {
		due := int(now.Sub(begin).Seconds() * p.Rate)
		if p.Rate == 0 {
			due = r.Sent + 1
		}
		if r.Sent >= due {
			next := time.Duration(float64(r.Sent+1) / p.Rate * float64(time.Second))
			time.Sleep(max(next-now.Sub(begin), 20*time.Microsecond))
			continue
		}
		if p.Rate > 0 {
			r.Late = max(r.Late, now.Sub(begin)-time.Duration(float64(r.Sent)/p.Rate*float64(time.Second)))
		}
		if err := pub.send(time.Now()); err != nil {
			return err
		}
		r.Sent++
	}
	r.Seconds = time.Since(begin).Seconds()
	if err := pub.wait(10 * time.Second); err != nil {
		return err
	}
	return say(r)
}
