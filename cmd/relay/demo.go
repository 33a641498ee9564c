package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/consumer"
)

// demoPace is the pause between two messages of a demo: slow enough to be followed by eye.
const demoPace = 40 * time.Millisecond

// runDemo feeds the messages of a file and says what to try next.
func (s *service) runDemo(ctx context.Context) {
	if err := s.feed(ctx); err != nil {
		s.log.Error("demo not fed", "file", s.demo, "error", err)
		return
	}
	fmt.Print(s.nextSteps())
}

type demoMessage struct {
	Subject string          `json:"subject"`
	Data    json.RawMessage `json:"data"`
}

func (s *service) feed(ctx context.Context) error {
	f, err := os.Open(s.demo)
	if err != nil {
		return err
	}
	defer f.Close()
	js, err := newJetStream(s.conn.Conn, s.cfg)
	if err != nil {
		return err
	}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var m demoMessage
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
			return err
		}
		if _, err := consumer.Publish(ctx, js, &nats.Msg{Subject: m.Subject, Data: m.Data}); err != nil {
			return fmt.Errorf("%s: %w", m.Subject, err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(demoPace):
		}
	}
	return lines.Err()
}

// nextSteps are commands for a second terminal, as they have to be called with the ports that were taken.
func (s *service) nextSteps() string {
	self, err := os.Executable()
	if err != nil {
		self = "relay"
	}
	if wd, err := os.Getwd(); err == nil && len(self) > len(wd) && self[:len(wd)] == wd {
		self = "." + self[len(wd):]
	}
	call := func(args string) string {
		where := " -c " + s.flags.file
		if s.natsd != nil && s.natsd.ClientURL() != "nats://"+s.cfg.NATS.Embedded.Listen {
			where += " --server " + s.natsd.ClientURL()
		}
		return self + " " + args + where
	}
	health := ""
	if s.admin != nil {
		health = "\n  curl http://" + s.admin.Addr() + "/readyz                     # is everything well? also /metrics"
	}
	server := s.cfg.NATS.URL.String()
	if s.natsd != nil {
		server = s.natsd.ClientURL()
	}
	return fmt.Sprintf(`
The orders of %s are in. From a second terminal, in this folder:

  %s
  %s
  nats --server %s pub orders.eu.created '{"id":2}'   # the stock client works as well

One order could not be shipped and is in the dead letters. Look at it, mend the handler, and replay it:

  %s
  touch relay-data/demo/mended
  %s%s

Ctrl-C drains and stops.

`, s.demo, call(`pub orders.eu.created '{"id":1}'`), call("explain orders.us.created"), server, call("dlq ls"), call("dlq replay --yes"), health)
}
