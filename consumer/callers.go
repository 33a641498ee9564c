package consumer

import (
	"context"

	"github.com/relaymq/relay/consumer/internal/caller"
)

// ErrForgotten is the cause with which the context of a handler is cancelled when the caller of its message does not want it any
// more; see [Interest]. What the handler returns then does not count, unless it is a success, [Dead] or [Drop].
var ErrForgotten = caller.ErrForgotten

// StillWanted checks once more whether the message should start: has its deadline passed, and does its caller still want it? A handler whose
// messages wait for something of its own, such as a free process, calls it just before the work begins, and returns its error unchanged; no
// attempt is spent then. relay makes the same check before it calls the handler, so other handlers do not need it, and without a wait of a
// second, or of interest.timeout after a yes, it returns at once. It blocks as long as the caller takes to answer, for 250ms or
// interest.timeout at most; whoever does not answer is taken to want the message still.
func (m *Msg) StillWanted(ctx context.Context) error {
	if m.gate == nil {
		return nil
	}
	return m.gate(ctx)
}
