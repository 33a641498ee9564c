package history

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/cmd/relay/internal/cli"
	"github.com/relaymq/relay/cmd/relay/internal/config"
	"github.com/relaymq/relay/cmd/relay/internal/console"
	"github.com/relaymq/relay/internal/archive"
	"github.com/relaymq/relay/internal/retry"
)

// Console is what the console shows of what became of messages: the same as the commands.
type Console struct {
	cl      *cli.Client
	running func() *config.Config
}

// NewConsole works on the connection of the service. running is the configuration that runs now.
func NewConsole(cl *cli.Client, running func() *config.Config) *Console {
	return &Console{cl: cl, running: running}
}

// Trace gathers what is stored of a message.
func (b *Console) Trace(ctx context.Context, message string) (*console.Life, error) {
	l, err := parseTraced(message)
	if err != nil {
		return nil, cli.ForConsole(err)
	}
	cfg := *b.cl.Config
	cfg.Routes = b.running().Routes
	cl := *b.cl
	cl.Config = &cfg
	if err := l.gather(ctx, &cl); err != nil {
		return nil, err
	}
	return &l.Life, nil
}

// Archive tells whether this instance keeps what became of messages.
func (b *Console) Archive() bool { return b.cl.Config.Archive.Outcomes }

// Outcomes are the latest that were kept of a route and its stream.
func (b *Console) Outcomes(ctx context.Context, stream, route string, most int) (o console.Outcomes, err error) {
	o.List = []console.Outcome{}
	list, back, err := archive.Latest(ctx, b.cl.JS, b.cl.Config.Service, stream, route, most)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return o, nil
	}
	if err != nil {
		return o, fmt.Errorf("the archive: %w", err)
	}
	o.Back = cli.KnownTime(back.UTC())
	for _, f := range list {
		id := retry.Origin{Stream: stream, Consumer: f.Durable, Sequence: f.Sequence, Time: f.Published}.ID()
		o.List = append(o.List, console.Outcome{
			Ended: f.Ended, Message: id, Stream: stream, Sequence: f.Sequence, Outcome: outcomeOf(f), Attempts: f.Attempts, Replay: f.Replay, Instance: f.Instance,
			Result: resultOf(f),
		})
	}
	return o, nil
}
