package trouble

import (
	"context"
	"time"

	"github.com/relaymq/relay/internal/transient"
)

// mostPause is the longest pause before what is away is tried again.
const mostPause = 5 * time.Second

// Persist tries until that succeeds, fails for a reason that does not pass by itself, or ctx is done. What it waits for is in the list meanwhile.
func (t *List) Persist(ctx context.Context, what string, try func(ctx context.Context) error) error {
	for p := new(transient.Patience); ; {
		err := try(ctx)
		switch {
		case err == nil:
			t.Mended(what, time.Now())
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case !transient.Is(err):
			return err
		}
		t.Note(what, err, time.Now())
		transient.Pause(ctx, p.Next(mostPause))
	}
}
