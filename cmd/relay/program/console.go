package program

import (
	"log/slog"

	"github.com/relaymq/relay/cmd/relay/internal/cli"
	"github.com/relaymq/relay/cmd/relay/internal/command/deadletters"
	"github.com/relaymq/relay/cmd/relay/internal/command/history"
	"github.com/relaymq/relay/cmd/relay/internal/command/instances"
	"github.com/relaymq/relay/cmd/relay/internal/command/offline"
	"github.com/relaymq/relay/cmd/relay/internal/command/retries"
	"github.com/relaymq/relay/cmd/relay/internal/config"
	"github.com/relaymq/relay/cmd/relay/internal/console"
	"github.com/relaymq/relay/event"
	"github.com/relaymq/relay/internal/eventkind"
)

// What each family of commands has behind the console.
type (
	ofLetters   = deadletters.Console
	ofInstances = instances.Console
	ofHistory   = history.Console
	ofRetries   = retries.Console
)

// behindConsole is what the console shows and does: the same as the commands, on the connection of the service.
type behindConsole struct {
	*ofLetters
	*ofInstances
	*ofHistory
	*ofRetries

	cl      *cli.Client
	running func() *config.Config // the configuration that runs now
	log     *slog.Logger
}

var _ console.Backend = (*behindConsole)(nil)

// newBehindConsole returns how to stop the replays that the console runs, too; they can be resumed.
func newBehindConsole(cl *cli.Client, running func() *config.Config, log *slog.Logger) (b console.Backend, stop func()) {
	letters := deadletters.NewConsole(cl, log)
	return &behindConsole{
		ofLetters: letters, ofInstances: instances.NewConsole(cl, log), ofHistory: history.NewConsole(cl, running), ofRetries: retries.NewConsole(cl),
		cl: cl, running: running, log: log,
	}, letters.Close
}

func (b *behindConsole) Audit(by, route, text string) {
	b.log.Info("an operator did something in the console", "by", by, "what", text)
	b.cl.Tell(eventkind.Audit, event.Data{Route: route, By: by, Text: text})
}

func (b *behindConsole) Settings() console.Settings {
	return offline.Settings(b.cl.Config, b.running())
}
