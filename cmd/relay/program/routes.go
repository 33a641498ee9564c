package program

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/relaymq/relay/cmd/relay/internal/cli"
	"github.com/relaymq/relay/cmd/relay/internal/config"
	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/dlq"
	"github.com/relaymq/relay/internal/subject"
)

// routeTable is what is known of the routes: from the running instances, else from the configuration.
type routeTable struct {
	running bool // instances answered
	known   map[string]routeInfo
}

type routeInfo struct {
	key, state, why string
	durable         string
	streams         []string // that it reads, on any instance; none: not known
	template        subject.Template
}

func knownRoutes(ctx context.Context, cl *cli.Client) (routeTable, error) {
	t := routeTable{known: make(map[string]routeInfo)}
	list, err := consumer.AskStatus(ctx, cl.Conn.Conn, cl.Config.Service)
	if err != nil && !errors.Is(err, consumer.ErrNobody) {
		return t, err
	}
	for _, s := range list {
		t.running = true
		for _, rt := range s.Routes {
			// The worst of all instances.
			info, ok := t.known[rt.Name]
			streams := info.streams
			if !ok || info.state == "flowing" {
				info = routeInfo{key: rt.Key, state: rt.State, why: rt.Why, durable: rt.Durable}
			}
			if rt.Stream != "" && !slices.Contains(streams, rt.Stream) {
				streams = append(streams, rt.Stream)
			}
			info.streams = streams
			t.known[rt.Name] = info
		}
	}
	if !t.running {
		for _, rt := range cl.Config.Routes {
			info := routeInfo{key: rt.Key, durable: rt.Durable}
			if stream := streamOf(ctx, cl, rt); stream != "" {
				info.streams = []string{stream}
			}
			t.known[rt.Name] = info
		}
	}
	for name, info := range t.known {
		info.template, _ = subject.ParseTemplate(info.key) // of subject and route, a text that nobody expands
		t.known[name] = info
	}
	return t, nil
}

// streamOf is the stream that a route of the configuration reads; empty: it cannot be told.
func streamOf(ctx context.Context, cl *cli.Client, rt config.Route) string {
	if rt.Stream != "" || len(rt.Subjects) == 0 {
		return rt.Stream
	}
	name, err := cl.JS.StreamNameBySubject(ctx, rt.Subjects[0])
	if err != nil {
		return "" // the stream is not there yet, and neither is anything of it
	}
	return name
}

// refuse says why an entry cannot go to its route. Whether somebody takes what is handed over is for [dlq.Choice].
func (t routeTable) refuse(e dlq.Entry) string {
	if info, ok := t.known[e.Route]; ok {
		if len(info.streams) == 0 || slices.Contains(info.streams, e.Stream) {
			return ""
		}
		who := "the configuration"
		if t.running {
			who = "the running instances"
		}
		return fmt.Sprintf("route %s of %s reads stream %s, and these messages are of stream %s (--to-subject publishes them instead, for the routes that read its stream)",
			e.Route, who, strings.Join(info.streams, ", "), e.Stream)
	}
	if len(t.known) == 0 {
		return ""
	}
	if t.running {
		return fmt.Sprintf("no running instance has a route %s (relay status shows the routes; --to-subject publishes instead)", e.Route)
	}
	return fmt.Sprintf("the configuration has no route %s (--to-subject publishes instead)", e.Route)
}

// key is what the entry's route supervises together.
func (t routeTable) key(e dlq.Entry) string {
	info := t.known[e.Route]
	switch info.key {
	case "", "subject":
		return e.Subject
	case "route":
		return ""
	}
	key, err := info.template.Expand(e.Subject)
	if err != nil {
		return e.Subject
	}
	return key
}

// note is what an operator should know of a route before messages go to it.
func (t routeTable) note(route string) string {
	info := t.known[route]
	switch info.state {
	case "", "flowing":
		return ""
	}
	text := ", which is " + info.state
	if info.why != "" {
		text += " (" + cli.Shorten(cli.Printable(info.why), 100) + ")"
	}
	return text
}
