package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/consumer/handler/discard"
	relayexec "github.com/relaymq/relay/consumer/handler/exec"
	relayhttp "github.com/relaymq/relay/consumer/handler/http"
	"github.com/relaymq/relay/consumer/handler/request"
	"github.com/relaymq/relay/consumer/handler/worker"
)

var errFails = errors.New("fails as it was told to")

// handle is the work of the plain contestants and of Watermill, by hand.
func (t *turn) handle() (func(subject string, body []byte) error, error) {
	switch h := t.Handler; h.Kind {
	case "discard":
		return func(string, []byte) error { t.count(); return nil }, nil
	case "sleep":
		return func(string, []byte) error { time.Sleep(h.Sleep); t.count(); return nil }, nil
	case "latency":
		return func(_ string, body []byte) error { t.arrived(body); return nil }, nil
	case "failonce":
		return func(_ string, body []byte) error {
			_, n := stampOf(body)
			if chosen(t.Seed, n, h.Percent) {
				if _, again := t.failed.LoadOrStore(n, true); !again {
					return errFails
				}
			}
			t.count()
			return nil
		}, nil
	case "http":
		return t.post()
	case "worker":
		return t.workerPool(h.Command)
	case "request":
		return t.ask, nil
	case "exec":
		return func(_ string, body []byte) error {
			c := exec.Command(h.Command[0], h.Command[1:]...)
			c.Stdin = bytes.NewReader(body)
			if err := c.Run(); err != nil {
				return err
			}
			t.count()
			return nil
		}, nil
	}
	return nil, fmt.Errorf("%s: no handler %q", t.Contestant, t.Handler.Kind)
}

func (t *turn) arrived(body []byte) {
	now := time.Now()
	if at, _ := stampOf(body); at.After(t.Handler.Warm) {
		t.latency.add(now.Sub(at))
	}
	t.count()
}

// relayHandler is the same with relay's own handlers.
func (t *turn) relayHandler() (consumer.Handler, error) {
	switch h := t.Handler; h.Kind {
	case "discard":
		return discard.New(), nil
	case "sleep":
		return consumer.HandlerFunc(func(context.Context, *consumer.Msg) error { time.Sleep(h.Sleep); return nil }), nil
	case "latency":
		return consumer.HandlerFunc(func(_ context.Context, m *consumer.Msg) error { t.arrived(m.Data); return nil }), nil
	case "failonce":
		return consumer.HandlerFunc(func(_ context.Context, m *consumer.Msg) error {
			if _, n := stampOf(m.Data); m.Attempt == 1 && chosen(t.Seed, n, h.Percent) {
				return errFails
			}
			t.count()
			return nil
		}), nil
	case "refuse":
		return consumer.HandlerFunc(func(context.Context, *consumer.Msg) error { t.count(); return errFails }), nil
	case "http":
		cfg := relayhttp.Config{URL: h.URL}
		if h.Signed {
			cfg.Sign.Keys = []relayhttp.File{{File: h.Key}}
		}
		cfg.TLS.InsecureSkipVerify = h.H2
		return relayhttp.New(cfg, t.Concurrency)
	case "exec":
		return relayexec.New(relayexec.Config{Command: h.Command})
	case "worker":
		return worker.New(worker.Config{Command: h.Command, Processes: workerProcesses}, slog.New(slog.DiscardHandler))
	case "request":
		js, err := jetstream.New(t.nc)
		if err != nil {
			return nil, err
		}
		return request.New(request.Config{Subject: serviceSubject}, t.nc, js)
	}
	return nil, fmt.Errorf("no handler %q", t.Handler.Kind)
}
