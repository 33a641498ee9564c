package publish

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"
	"github.com/spf13/cobra"

	"github.com/relaymq/relay/cmd/relay/internal/access"
	"github.com/relaymq/relay/cmd/relay/internal/cli"
	"github.com/relaymq/relay/cmd/relay/internal/publishing"
	"github.com/relaymq/relay/internal/schedule"
	"github.com/relaymq/relay/internal/transient"
)

// delay is when pub is to publish.
type delay struct {
	in time.Duration
	at string
	id string
}

func (d *delay) flags(c *cobra.Command) {
	f := c.Flags()
	f.DurationVar(&d.in, "in", 0, "publish after this long")
	f.StringVar(&d.at, "at", "", "publish at this time, such as 2026-11-30T08:00:00+01:00")
	f.StringVar(&d.id, "id", "", "id of a delayed message (default one of its own)")
}

// due is when; zero is at once.
func (d *delay) due(now time.Time) (time.Time, error) {
	switch {
	case d.in != 0 && d.at != "":
		return time.Time{}, fmt.Errorf("%w: set --in or --at, and not both", cli.ErrUsage)
	case d.in < 0:
		return time.Time{}, fmt.Errorf("%w: --in must not be negative (got %v)", cli.ErrUsage, d.in)
	case d.in > 0:
		return now.Add(d.in), nil
	case d.at != "":
		t, err := time.Parse(time.RFC3339, d.at)
		if err != nil {
			return t, fmt.Errorf("%w: --at must be a time with its zone, such as 2026-11-30T08:00:00+01:00 or 2026-11-30T07:00:00Z (got %q)", cli.ErrUsage, d.at)
		}
		if t.Before(now) {
			return t, fmt.Errorf("%w: --at is in the past (%s): leave it out to publish now", cli.ErrUsage, cli.When(t))
		}
		return t, nil
	case d.id != "":
		return time.Time{}, fmt.Errorf("%w: --id is for --in and --at; use -H 'Nats-Msg-Id: %s' otherwise", cli.ErrUsage, cli.Printable(d.id))
	}
	return time.Time{}, nil
}

// delayed is a message that waits.
type delayed struct {
	ID       string    `json:"id"`
	Subject  string    `json:"subject"`
	Due      time.Time `json:"due"`
	Stream   string    `json:"stream"` // that takes it from publishers
	Sequence uint64    `json:"seq"`    // there

	waits string // the stream in which it waits: relay moves it there at once
}

// store has the message wait.
func (d *delay) store(ctx context.Context, o *cli.Options, m *nats.Msg, due time.Time, timeout time.Duration) (delayed, error) {
	id := cli.Or(d.id, nuid.Next())
	if err := schedule.ValidateID(id); err != nil {
		return delayed{}, fmt.Errorf("%w: --id %w", cli.ErrUsage, err)
	}
	for name := range m.Header {
		if err := schedule.ValidateHeader(name); err != nil {
			return delayed{}, fmt.Errorf("%w: %w", cli.ErrUsage, err)
		}
	}
	cl, err := o.Open(ctx, access.Publisher)
	if err != nil {
		return delayed{}, err
	}
	defer cl.Close()
	if err := schedule.ValidateSubject(cl.Config.Service, m.Subject); err != nil {
		return delayed{}, fmt.Errorf("%w: subject: %w", cli.ErrUsage, err)
	}
	var ack *jetstream.PubAck
	if most := cl.Config.Later.MaxAge; time.Until(due) > most {
		return delayed{}, fmt.Errorf("%w: a message may wait %v at most (later.max_age): it would be due at %s", cli.ErrUsage, most, cli.When(due))
	}
	err = cl.Permitted(ctx, access.Publisher, func(ctx context.Context) error {
		return transient.Once(ctx, cl.JS.Conn(), func(ctx context.Context) (err error) {
			ack, err = schedule.AttachLater(cl.JS, cl.Config.Service).Delay(ctx, id, m, due)
			return err
		})
	})
	if publishing.Unknown(err) {
		return delayed{}, unknown(ctx, err, timeout, fmt.Sprintf("publish it again with --id %s and the same time: that replaces a first one that still waits", id))
	}
	if err != nil {
		return delayed{}, transient.Plain(err)
	}
	return delayed{id, m.Subject, due.UTC(), ack.Stream, ack.Sequence, schedule.LaterStream(cl.Config.Service)}, nil
}
