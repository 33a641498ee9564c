package supervise

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/relaymq/relay/supervisor"
)

// resume ended suspensions only: a route that waited for a Retry-After of an hour went on waiting.
func TestEndWaits_endsEveryWaitAtOnce(t *testing.T) {
	for what, opts := range map[string]Options{
		"Retry-After of the route": {Config: supervisor.Config{RetryAfter: supervisor.ScopeRoute}},
		"Retry-After of the key":   {Config: supervisor.Config{RetryAfter: scopeKey}},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, opts)
				b.send(first(1, retryAfter(time.Hour), succeed), "k", 1)
				time.Sleep(time.Minute)
				b.send(succeed, "k", 2)
				time.Sleep(time.Minute)
				ended := b.g.EndWaits(AtOnce)
				if ended.Route == Flowing && ended.Waiting == 0 {
					t.Errorf("ended %+v", ended)
				}
				time.Sleep(time.Second)
				b.wantFinal(2, AckMessage)
				time.Sleep(2 * time.Hour)
				b.wantFinal(1, AckMessage)
				b.close()
			})
		})
	}
}

func TestEndWaits_ofTripsStopsAndSuspensions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{MaxAttempts: 100, Config: supervisor.Config{Restart: supervisor.Backoff{Policy: supervisor.Constant, Min: time.Hour, Max: time.Hour}}})
		b.redeliver = false
		for i := range uint64(50) {
			b.send(failing, fmt.Sprint("k", i), i+1)
		}
		b.send(panicking, "panics", 100)
		b.g.SuspendKey("suspended", "test")
		synctest.Wait()
		if s := b.g.Status(); s.State != Waiting {
			t.Fatalf("status %+v", s)
		}
		ended := b.g.EndWaits(AtOnce)
		if ended.Route != Waiting || ended.Suspended != 1 || ended.Why == "" {
			t.Errorf("ended %+v", ended)
		}
		b.send(succeed, "suspended", 201)
		b.send(succeed, "other", 202)
		time.Sleep(8 * time.Second) // the message that panics may have been asked first
		b.wantFinal(201, AckMessage)
		b.wantFinal(202, AckMessage)
		if ended := b.g.EndWaits(AtOnce); ended.Route != Flowing {
			t.Errorf("ended %+v of a route that flows", ended)
		}
		if was := b.g.EndWait("nobody"); was != Flowing {
			t.Errorf("ended %v of a key that is not known", was)
		}
		b.close()
	})
}
