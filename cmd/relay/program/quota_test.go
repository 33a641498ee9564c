package program

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/natstest"
)

// An endpoint says that it permits two requests more in an hour: two more start, status says why and until when, and resume of the route
// has all the others start. Another route to the same endpoint without a rate is not slowed.
func TestRun_anEndpointLowersTheRateUntilResume(t *testing.T) {
	t.Parallel()
	var requests [2]atomic.Int64
	var open atomic.Bool
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		of := &requests[0]
		if r.URL.Path == "/free" {
			of = &requests[1]
		}
		if n := of.Add(1); !open.Load() {
			w.Header().Set("RateLimit", fmt.Sprintf(`"default";r=%d;t=7200`, max(0, 3-n)))
		}
	}))
	t.Cleanup(hook.Close)
	w := newWorld(t, strings.ReplaceAll(`
routes:
  - {name: slowed, subjects: [orders.slowed.*], start: all, rate: 10000/s, concurrency: 1, handler: {http: {url: "URL/slowed"}}}
  - {name: free, subjects: [orders.free.*], start: all, handler: {http: {url: "URL/free"}}}
`, "URL", hook.URL))
	w.run()
	const messages = 20
	for i := range messages {
		w.publish(fmt.Sprintf("orders.slowed.%d", i), nil, nil)
		w.publish(fmt.Sprintf("orders.free.%d", i), nil, nil)
	}
	natstest.Eventually(t, "the route without a rate is done", func() bool { return requests[1].Load() == messages })
	natstest.Eventually(t, "status says that the route is limited", func() bool {
		return strings.Contains(must(t, w.dir, "status"), "messages start again in ")
	})
	var list []consumer.Status
	if err := json.Unmarshal([]byte(must(t, w.dir, "status", "--json")), &list); err != nil || len(list) != 1 || len(list[0].Limits) != 1 {
		t.Fatalf("%v: %+v", err, list)
	}
	l, rt := list[0].Limits[0], list[0].Routes[0]
	if l.Name != "rate of slowed" || l.Left == nil || *l.Left != 0 || l.Until == nil || time.Until(*l.Until) > time.Hour || !strings.Contains(l.Why, `RateLimit: "default";r=0;t=7200`) {
		t.Errorf("the limit: %+v", l)
	}
	if rt.State != control.StateLimited || rt.Until == nil || !strings.Contains(rt.Why, "nothing starts until ") || requests[0].Load() != 3 {
		t.Errorf("%d requests; the route: %+v", requests[0].Load(), rt)
	}
	if out := must(t, w.dir, "explain", "orders.slowed.1"); !strings.Contains(out, "RateLimit headers of an http endpoint lower it") {
		t.Errorf("explain:\n%s", out)
	}
	open.Store(true)
	if out := must(t, w.dir, "resume", "slowed"); !strings.Contains(out, "the route was limited since ") {
		t.Errorf("resume:\n%s", out)
	}
	natstest.Eventually(t, "all are handled", func() bool { return requests[0].Load() == messages })
}
