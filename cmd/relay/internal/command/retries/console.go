package retries

import (
	"context"

	"github.com/relaymq/relay/cmd/relay/internal/cli"
	"github.com/relaymq/relay/cmd/relay/internal/console"
	"github.com/relaymq/relay/cmd/relay/internal/waiting"
)

// Console is what the console shows of retries: the same as the command.
type Console struct{ cl *cli.Client }

// NewConsole works on the connection of the service.
func NewConsole(cl *cli.Client) *Console { return &Console{cl} }

// Retries are messages that wait for their retry.
func (b *Console) Retries(ctx context.Context, route string, most int) (list []console.Retry, more bool, err error) {
	r, err := waiting.Open(ctx, b.cl)
	if err != nil {
		return nil, false, err
	}
	list = []console.Retry{}
	err = r.Each(ctx, route, func(m waiting.Message) bool {
		if more = len(list) == most; !more {
			list = append(list, console.Retry{
				ID: m.ID, Where: m.Where, Routes: m.Routes, Subject: m.Subject, Attempts: m.Attempts, Due: m.Due, Error: cli.Or(m.Error, m.Fault),
			})
		}
		return !more
	})
	return list, more, err
}
