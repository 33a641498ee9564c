package suspects

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/relaymq/relay/internal/natstest"
)

// watched are processes that watch over one another.
type watched struct {
	t    *testing.T
	list []*Lives

	mu    sync.Mutex
	found []string // the dead, each by its finder
}

func watch(t *testing.T, n int) *watched {
	w := &watched{t: t, list: lives(t, n)}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for i, l := range w.list {
		l.cfg.Instance = fmt.Sprint("p", i)
		if err := l.renew(t.Context()); err != nil {
			t.Fatal(err)
		}
		l.cfg.Asked = func(q []byte) []byte { return fmt.Appendf(nil, "%s to %d", q, i) }
		running.Go(func() {
			l.Watch(ctx, func(_ context.Context, dead []string) {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.found = append(w.found, dead...)
			})
		})
	}
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	w.eventually("all know all", func() bool {
		return !slices.ContainsFunc(w.list, func(l *Lives) bool { return l.Others() != n-1 })
	})
	return w
}

func (w *watched) eventually(what string, ok func() bool) {
	w.t.Helper()
	natstest.Eventually(w.t, what, ok)
}

func (w *watched) dead() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Sorted(slices.Values(w.found))
}

func TestWatch_eachDeathIsFoundByOne(t *testing.T) {
	t.Parallel()
	w := watch(t, 6)
	firsts := 0
	for _, l := range w.list {
		if l.First() {
			firsts++
		}
	}
	if firsts != 1 {
		t.Errorf("%d are the first", firsts)
	}
	if answers, err := w.list[0].AskAll(t.Context(), []byte("asked")); err != nil || len(answers) != 5 {
		t.Errorf("%d answers, %v", len(answers), err)
	}

	w.list[5].End(t.Context()) // cleanly
	began := time.Now()
	for _, i := range []int{1, 3, 4} { // perhaps one behind the other
		w.list[i].cfg.Conn.Close()
	}
	if _, err := w.list[0].AskAll(t.Context(), []byte("asked")); err == nil {
		t.Error("one that died answers")
	}
	w.eventually("all are found", func() bool { return len(w.dead()) >= 3 })
	t.Logf("found after %v", time.Since(began))
	time.Sleep(2 * watchEvery)
	if got := fmt.Sprint(w.dead()); got != "[p1 p3 p4]" {
		t.Errorf("found %v", got)
	}
	w.eventually("the others are known", func() bool { return w.list[0].Others() == 1 && w.list[2].Others() == 1 })
	if answers, err := w.list[0].AskAll(t.Context(), []byte("asked")); err != nil || len(answers) != 1 {
		t.Errorf("%d answers, %v", len(answers), err)
	}
}

// A process that was cut off for long enough to be taken for dead is watched over again when it is back.
func TestWatch_whoWasTakenForDeadComesBack(t *testing.T) {
	t.Parallel()
	w := watch(t, 3)
	l := w.list[1]
	value, err := json.Marshal(entry{Instance: "p1", Dead: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.kv.Put(t.Context(), l.id, value); err != nil {
		t.Fatal(err)
	}
	w.eventually("it says that it lives", func() bool {
		e, err := l.kv.Get(t.Context(), l.id)
		var of entry
		return err == nil && json.Unmarshal(e.Value(), &of) == nil && !of.Dead
	})
	w.eventually("the others know it", func() bool { return w.list[0].Others() == 2 && w.list[2].Others() == 2 })
	l.cfg.Conn.Close()
	w.eventually("its death is found", func() bool { return fmt.Sprint(w.dead()) == "[p1]" })
}
