package routes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/relaymq/relay/cmd/relay/internal/cli"
	"github.com/relaymq/relay/cmd/relay/internal/config"
	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/subject"
)

// Table is what is known of the routes: from the running instances, else from the configuration.
type Table struct {
	Running bool // instances answered
	Routes  map[string]Route
}

// Route is how a route is, at its worst instance.
type Route struct {
	key, state, why string
	Durable         string
	Divided         bool     // it has partitions
	Streams         []string // that it reads, on any instance; none: not known
	template        subject.Template
}

// Known asks the instances that run.
func Known(ctx context.Context, cl *cli.Client) (Table, error) {
	t := Table{Routes: make(map[string]Route)}
	list, err := control.AskStatus(ctx, cl.Conn.Conn, cl.Config.Service)
	if err != nil && !errors.Is(err, control.ErrNobody) {
		return t, err
	}
	for _, s := range list {
		t.Running = true
		for _, rt := range s.Routes {
			// The worst of all instances.
			info, ok := t.Routes[rt.Name]
			streams := info.Streams
			if !ok || info.state == "flowing" {
				info = Route{key: rt.Key, state: rt.State, why: rt.Why, Durable: rt.Durable, Divided: rt.Partitions != nil}
			}
			if rt.Stream != "" && !slices.Contains(streams, rt.Stream) {
				streams = append(streams, rt.Stream)
			}
			info.Streams = streams
			t.Routes[rt.Name] = info
		}
	}
	if !t.Running {
		for _, rt := range cl.Config.Routes {
			info := Route{key: rt.Key, Durable: rt.Durable, Divided: rt.Partitions > 0}
			if stream := streamOf(ctx, cl, rt); stream != "" {
				info.Streams = []string{stream}
			}
			t.Routes[rt.Name] = info
		}
	}
	for name, info := range t.Routes {
		info.template, _ = subject.ParseTemplate(info.key) // of subject and route, a text that nobody expands
		t.Routes[name] = info
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

// Refuse says why an entry cannot go to its route. Whether somebody takes what is handed over is for [dlq.Choice].
func (t Table) Refuse(e dlq.Entry) string {
	if info, ok := t.Routes[e.Route]; ok {
		if len(info.Streams) == 0 || slices.Contains(info.Streams, e.Stream) {
			return ""
		}
		who := "the configuration"
		if t.Running {
			who = "the running instances"
		}
		return fmt.Sprintf("route %s of %s reads stream %s, and these messages are of stream %s (--to-subject publishes them instead, for the routes that read its stream)",
			e.Route, who, strings.Join(info.Streams, ", "), e.Stream)
	}
	if len(t.Routes) == 0 {
		return ""
	}
	if t.Running {
		return fmt.Sprintf("no running instance has a route %s (relay status shows the routes; --to-subject publishes instead)", e.Route)
	}
	return fmt.Sprintf("the configuration has no route %s (--to-subject publishes instead)", e.Route)
}

// Key is what the entry's route supervises together.
func (t Table) Key(e dlq.Entry) string {
	info := t.Routes[e.Route]
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

// Note is what an operator should know of a route before messages go to it.
func (t Table) Note(route string) string {
	info := t.Routes[route]
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
