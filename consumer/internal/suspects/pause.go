package suspects

import (
	"context"
	"time"
)

// patience is how long the server may take to answer.
const patience = 5 * time.Second

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
