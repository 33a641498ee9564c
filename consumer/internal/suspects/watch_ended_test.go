package suspects

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/relaymq/relay/internal/natstest"
)

// A process that ended cleanly stayed among those that are asked what they have in hand. It cannot answer, so after one clean stop nothing was
// given back any more of those that died later.
func TestWatch_regressionWhoEndedIsNotAsked(t *testing.T) {
	t.Parallel()
	list := lives(t, 4)
	ctx, cancel := context.WithCancel(t.Context())
	died := make(chan []string, len(list))
	var watching sync.WaitGroup
	for _, l := range list {
		l.cfg.Asked = func([]byte) []byte { return []byte("nothing") }
		watching.Go(func() { l.Watch(ctx, func(_ context.Context, dead []string) { died <- dead }) })
	}
	defer watching.Wait()
	defer cancel()
	knows := func(l *Lives, id string) bool {
		of := l.living.Load()
		return of != nil && slices.Contains(*of, id)
	}
	until := func(what string, ok func() bool) {
		t.Helper()
		natstest.Eventually(t, what, ok)
	}
	until("all know one another", func() bool {
		for _, l := range list {
			if of := l.living.Load(); of == nil || len(*of) != 3 {
				return false
			}
		}
		return true
	})
	list[1].End(t.Context())
	list[2].cfg.Conn.Close() // all that the others see of a death
	select {
	case <-died:
	case <-time.After(30 * time.Second):
		t.Fatal("nobody notices the death")
	}
	for _, l := range []*Lives{list[0], list[3]} {
		until("the dead one is known", func() bool { return !knows(l, list[2].id) })
		if answers, err := l.AskAll(t.Context(), []byte("in hand?")); err != nil || len(answers) != 1 {
			t.Errorf("%d answers, %v; want that of the other one that lives", len(answers), err)
		}
	}
	until("nobody watches over the one that ended", func() bool { return !knows(list[0], list[1].id) || !knows(list[3], list[1].id) })
}
