package cli

import (
	"fmt"
	"os"
	"os/user"
	"time"

	"github.com/relaymq/relay/event"
	"github.com/relaymq/relay/internal/events"
)

// Caller is who calls the command, unless --as says so: user@host.
func Caller() string {
	name := "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if host, err := os.Hostname(); err == nil {
		name += "@" + host
	}
	return name
}

// Runner is this process, in what is told of jobs and events: user@host:pid.
func Runner() string { return fmt.Sprintf("%s:%d", Caller(), os.Getpid()) }

// Tell publishes what an operator did, or what became of a replay. The command is done all the same when nobody hears it.
func (c *Client) Tell(kind event.Kind, d event.Data) {
	now := time.Now()
	d.Count, d.First = 1, now.UTC()
	if c.user != nil && d.User == "" {
		d.User = c.user()
	}
	_ = events.Publish(c.Conn.Conn, event.Event{Kind: kind, Service: c.Config.Service, Instance: Runner(), Time: now, Data: d})
}
