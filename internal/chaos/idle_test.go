package chaos

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// TestIdle_apiRequests counts what instances ask of the JetStream API while nothing is published, on three servers with three replicas of everything.
func TestIdle_apiRequests(t *testing.T) {
	if !Full {
		t.Skip("run by make chaos only")
	}
	const instances, routes, most = 20, 20, 100
	w := begin(t)
	h := cluster(w)
	var list []M
	for i := range routes {
		list = append(list, M{"name": fmt.Sprintf("r%d", i), "subjects": []string{fmt.Sprintf("t.r%d.>", i)}, "handler": M{"http": M{"url": h.URL("idle")}}})
	}
	for i := range instances {
		w.StartRelay(fmt.Sprintf("i%d", i), h, RelayConfig{Routes: list})
	}
	time.Sleep(2 * time.Minute) // after the start each asks more
	var asked, pulls atomic.Int64
	sub, err := w.nc.Subscribe("$JS.API.>", func(m *nats.Msg) {
		asked.Add(1)
		if strings.HasPrefix(m.Subject, "$JS.API.CONSUMER.MSG.NEXT.") {
			pulls.Add(1)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	const span = time.Minute
	time.Sleep(span)
	_ = sub.Unsubscribe()
	a, p := float64(asked.Load())/span.Seconds(), float64(pulls.Load())/span.Seconds()
	w.Figure("%d idle instances with %d routes each: %.0f requests a second to the JetStream API, %.0f of them pulls", instances, routes, a, p)
	if a == 0 || a > most {
		t.Errorf("%.1f requests a second, want ≤ %d", a, most)
	}
}
