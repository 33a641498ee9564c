package deadletters

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/relaymq/relay/cmd/relay/internal/cli"
	"github.com/relaymq/relay/cmd/relay/internal/config"
	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/subject"
)

// known refuses a route that neither the configuration, nor a running instance, nor a stored dead letter has: it is a typing
// mistake, and "no dead letters" would be taken for good news. Dead letters outlive their route, so a route with some is only
// noted. Without a configuration and without an instance nobody can tell.
func (f *dlqFilter) known(ctx context.Context, cl *cli.Client, store *dlq.Store, notes io.Writer) error {
	var names []string
	for _, rt := range cl.Config.Routes {
		names = append(names, rt.Name)
	}
	f.noteSubject(cl.Config, notes)
	if f.route == "" || slices.Contains(names, f.route) {
		return nil
	}
	// The first instance that has the route settles it.
	running, err := control.AskUntil(ctx, cl.Conn.Conn, cl.Config.Service, control.StatusRequest{Keys: -1}, func(s consumer.Status) bool {
		return slices.ContainsFunc(s.Routes, func(rt consumer.RouteStatus) bool { return rt.Name == f.route })
	})
	if err != nil && !errors.Is(err, control.ErrNobody) {
		return err
	}
	for _, s := range running.Instances {
		for _, rt := range s.Routes {
			names = append(names, rt.Name)
		}
	}
	if len(names) == 0 || slices.Contains(names, f.route) {
		return nil
	}
	n, bad, err := store.Count(ctx, dlq.Filter{Route: f.route})
	if err != nil {
		return fmt.Errorf("--route %s: %w", cli.Printable(f.route), err)
	}
	if n+bad > 0 {
		fmt.Fprintf(notes, "relay: note: there is no route %s any more, but it has dead letters\n", cli.Printable(f.route))
		return nil
	}
	return cli.Mistyped(f.route, names, "--route "+cli.Printable(f.route)+": there is no such route and no dead letter of it")
}

// noteSubject tells of a pattern that no route handles. It is no error: dead letters outlive routes.
func (f *dlqFilter) noteSubject(cfg *config.Config, notes io.Writer) {
	if f.subject == "" || len(cfg.Routes) == 0 {
		return
	}
	for _, rt := range cfg.Routes {
		for _, s := range rt.Subjects {
			if subject.Overlaps(s, f.subject) {
				return
			}
		}
	}
	fmt.Fprintf(notes, "relay: note: no route of the configuration handles a subject that matches %s\n", cli.Printable(f.subject))
}
