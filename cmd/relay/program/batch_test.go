package program

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
)

// Batches to an endpoint: few requests for many messages, one that the answer names is dead-lettered, and one that fails its whole
// batch is found and dead-lettered alone.
func TestRun_batches(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `
routes:
  - name: bulk
    subjects: [orders.>]
    start: all
    handler: {http: {url: "$HOOK"}}
    batch: {size: 50, wait: 100ms}
    retry: {min: 50ms, max: 50ms, max_attempts: 2}
`)
	var mu sync.Mutex
	done := map[string]int{}
	w.hook.answers(func(r request) (int, string) {
		var subjects []string
		var failed []string
		for line := range strings.Lines(r.body) {
			var m struct{ ID, Subject string }
			if err := json.Unmarshal([]byte(line), &m); err != nil {
				t.Errorf("%s: %v", line, err)
			}
			switch m.Subject {
			case "orders.poison":
				return 500, "poison"
			case "orders.dead":
				failed = append(failed, fmt.Sprintf(`{"id":%q,"verdict":"dead","error":"never"}`, m.ID))
			default:
				subjects = append(subjects, m.Subject)
			}
		}
		mu.Lock()
		defer mu.Unlock()
		for _, s := range subjects {
			done[s]++
		}
		return 200, `{"failed":[` + strings.Join(failed, ",") + `]}`
	})
	if out := must(t, w.dir, "explain", "orders.1"); !strings.Contains(out, "50 messages or 1MiB at once, after 100ms at most") {
		t.Errorf("explain:\n%s", out)
	}
	if _, err := w.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}}); err != nil {
		t.Fatal(err)
	}
	const messages = 1000
	publishMany(t, w.js, messages, func(i int) string {
		switch i {
		case 100:
			return "orders.poison"
		case 700:
			return "orders.dead"
		}
		return fmt.Sprintf("orders.%d", i)
	})
	w.run()
	settled(t, w.js, "ORDERS", "bulk")
	mu.Lock()
	defer mu.Unlock()
	for s, n := range done {
		if n != 1 {
			t.Errorf("%s: handled %d times", s, n)
		}
	}
	letters := deadLetters(t, w.js)
	if len(done) != messages-2 || len(letters) != 2 {
		t.Errorf("%d done, %d dead", len(done), len(letters))
	}
	if n := w.hook.count(); n > messages/2 {
		t.Errorf("%d requests for %d messages", n, messages)
	}
}
