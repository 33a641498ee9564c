package run

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/relaymq/relay/cmd/relay/internal/publishing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/cmd/relay/internal/cli"
	"github.com/relaymq/relay/cmd/relay/internal/config"
	"github.com/relaymq/relay/cmd/relay/internal/logging"
	"github.com/relaymq/relay/internal/dlq"
)

// demoPace is the pause between two messages of a demo: slow enough to be followed by eye.
const demoPace = 40 * time.Millisecond

const (
	// demoLook is how often a demo looks whether its messages are done, demoPatience how long.
	demoLook     = 200 * time.Millisecond
	demoPatience = time.Minute
)

// runDemo feeds the messages of a file and, when relay is done with them, says what to try next: said earlier, it would be
// gone from the screen by then.
func (s *service) runDemo(ctx context.Context) {
	err := s.feed(ctx)
	var left demoOutcome
	if err == nil {
		left, err = s.awaitDemo(ctx)
	}
	switch {
	case ctx.Err() != nil:
	case err != nil:
		s.log.Error("the demo ends", "file", s.demo, "error", err)
	case logging.JSON(os.Stderr, s.cfg.Log.Format):
		s.log.Info("the demo is over", "dead_letters", left.deadLetters, "commands", s.demoCommands(left))
	default:
		fmt.Print(s.nextSteps(left))
	}
}

// demoOutcome is how a demo ended.
type demoOutcome struct {
	settled     bool
	deadLetters int
}

// awaitDemo waits until nothing is left to do.
func (s *service) awaitDemo(ctx context.Context) (left demoOutcome, err error) {
	js, err := cli.NewJetStream(s.conn.Conn, s.cfg)
	if err != nil {
		return left, err
	}
	tick := time.NewTicker(demoLook)
	defer tick.Stop()
	for end := time.Now().Add(demoPatience); !left.settled && time.Now().Before(end); {
		select {
		case <-ctx.Done():
			return left, ctx.Err()
		case <-tick.C:
		}
		if left.settled, err = demoSettled(ctx, js, s.cfg.Routes); err != nil {
			return left, err
		}
	}
	store, err := dlq.Attach(ctx, js, s.cfg.Service)
	if err != nil {
		return left, err
	}
	left.deadLetters, _, err = store.Count(ctx, dlq.Filter{})
	return left, err
}

// demoSettled tells whether the durables of all routes have neither messages to deliver nor deliveries to settle.
func demoSettled(ctx context.Context, js jetstream.JetStream, routes []config.Route) (bool, error) {
	for _, rt := range routes {
		stream := rt.Stream
		if stream == "" {
			var err error
			if stream, err = js.StreamNameBySubject(ctx, rt.Subjects[0]); err != nil {
				return false, err
			}
		}
		c, err := js.Consumer(ctx, stream, rt.Durable)
		if errors.Is(err, jetstream.ErrConsumerNotFound) {
			return false, nil // the route is still starting
		}
		if err != nil {
			return false, err
		}
		if i := c.CachedInfo(); i.NumPending > 0 || i.NumAckPending > 0 {
			return false, nil
		}
	}
	return true, nil
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
	js, err := cli.NewJetStream(s.conn.Conn, s.cfg)
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
		if _, err := publishing.Publish(ctx, js, &nats.Msg{Subject: m.Subject, Data: m.Data}); err != nil {
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

// demoCommands are for a second terminal, as they have to be called with the ports that were taken.
func (s *service) demoCommands(left demoOutcome) []string {
	self, err := os.Executable()
	if err != nil {
		self = "relay"
	}
	if wd, err := os.Getwd(); err == nil && len(self) > len(wd) && self[:len(wd)] == wd {
		self = "." + self[len(wd):]
	}
	call := func(args string) string { return self + " " + args + " -c " + s.flags.File }
	list := []string{
		call(`pub orders.eu.created '{"id":1}'`),
		call("explain orders.us.created"),
		s.stockClient() + ` pub orders.eu.created '{"id":2}'   # the stock client works as well`,
	}
	if l := s.listeners(); len(l) > 0 {
		list = append(list, "curl http://"+l[0].Addr()+"/readyz   # is everything well? also /metrics")
	}
	if left.deadLetters > 0 {
		list = append(list, call("dlq ls"), "touch relay-data/demo/mended", call("dlq replay --yes"))
	}
	return list
}

// nextSteps is what a demo says at the end.
func (s *service) nextSteps(left demoOutcome) string {
	var b strings.Builder
	state := "handled"
	if !left.settled {
		state = "in, and some are still being tried"
	}
	fmt.Fprintf(&b, "\nThe orders of %s are %s. From a second terminal, in this folder:\n\n", s.demo, state)
	for _, c := range s.demoCommands(demoOutcome{}) {
		fmt.Fprintf(&b, "  %s\n", c)
	}
	if left.deadLetters > 0 {
		fmt.Fprintf(&b, "\n%d %s could not be handled: see the dead letters, mend the handler, and replay:\n\n", left.deadLetters, cli.Plural(left.deadLetters, "order"))
		for _, c := range s.demoCommands(left)[len(s.demoCommands(demoOutcome{})):] {
			fmt.Fprintf(&b, "  %s\n", c)
		}
	} else {
		fmt.Fprintf(&b, "\nThere are no dead letters: the handler was mended. `rm relay-data/demo/mended` breaks it again for the next start.\n")
	}
	fmt.Fprint(&b, "\nCtrl-C drains and stops.\n\n")
	return b.String()
}
