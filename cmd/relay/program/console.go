package program

import (
	"log/slog"

	"github.com/relaymq/relay/cmd/relay/internal/cli"
	"github.com/relaymq/relay/cmd/relay/internal/config"
	"github.com/relaymq/relay/cmd/relay/internal/console"
	"github.com/relaymq/relay/event"
)

// behindConsole is what the console shows and does: the same as the commands, on the connection of the service.
type behindConsole struct {
	*lettersConsole
	*instancesConsole
	*historyConsole
	*retriesConsole

	cl      *cli.Client
	running func() *config.Config // the configuration that runs now
	log     *slog.Logger
}

var _ console.Backend = (*behindConsole)(nil)

// newBehindConsole returns how to stop the replays that the console runs, too; they can be resumed.
func newBehindConsole(cl *cli.Client, running func() *config.Config, log *slog.Logger) (b console.Backend, stop func()) {
	letters := newLettersConsole(cl, log)
	return &behindConsole{
		lettersConsole: letters, instancesConsole: newInstancesConsole(cl, log), historyConsole: newHistoryConsole(cl, running), retriesConsole: newRetriesConsole(cl),
		cl: cl, running: running, log: log,
	}, letters.close
}

func (b *behindConsole) Audit(by, route, text string) {
	b.log.Info("an operator did something in the console", "by", by, "what", text)
	b.cl.Tell(event.Audit, event.Data{Route: route, By: by, Text: text})
}

func (b *behindConsole) Settings() console.Settings { return settings(b.cl.Config, b.running()) }
