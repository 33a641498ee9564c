package consumer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// Fifty healthy messages behind many bad ones waited for minutes when the handler is slow to fail: after each success relay tried what
// it held from the oldest message on.
func TestRelay_regressionHealthyMessagesBehindManyBadOnesOfASlowHandler_timed(t *testing.T) {
	timed(t)
	w := newWorld(t)
	const bad, good = 4000, 50
	for i := range bad {
		w.publish(fmt.Sprintf("orders.bad.%d", i), 1)
	}
	for i := range good {
		w.publish(fmt.Sprintf("orders.good.%d", i), 1)
	}
	var done atomic.Int32
	began := time.Now()
	w.start(Config{Logger: quiet}, Route{
		Name: "hooks", Subjects: []string{"orders.>"}, Concurrency: 8, Start: StartAll,
		Handler: HandlerFunc(func(_ context.Context, m *Msg) error {
			if strings.HasPrefix(m.Subject, "orders.good.") {
				done.Add(1)
				return nil
			}
			time.Sleep(300 * time.Millisecond)
			return errors.New("down")
		}),
	})
	for done.Load() < good && time.Since(began) < 40*time.Second {
		time.Sleep(50 * time.Millisecond)
	}
	if n, took := done.Load(), time.Since(began); n < good {
		t.Errorf("%d of %d healthy messages were handled in %v", n, good, took)
	} else {
		t.Logf("after %v", took)
	}
}
