package supervise

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/relaymq/relay/supervisor"
)

func TestRetryAfter_pausesTheRouteOrTheKeyClamped(t *testing.T) {
	for _, tt := range []struct {
		scope       supervisor.Scope
		named, want time.Duration
	}{
		{supervisor.ScopeRoute, 30 * time.Second, 30 * time.Second},
		{scopeKey, 30 * time.Second, 30 * time.Second},
		{supervisor.ScopeRoute, time.Millisecond, time.Second},
		{scopeKey, time.Millisecond, time.Second},
		{supervisor.ScopeRoute, 48 * time.Hour, time.Hour},
		{scopeKey, 48 * time.Hour, time.Hour},
	} {
		t.Run(fmt.Sprint(tt.scope, tt.named), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, Options{Retry: supervisor.Backoff{Min: time.Second}, Config: supervisor.Config{RetryAfter: tt.scope}})
				b.send(first(1, retryAfter(tt.named), succeed), "k", 1)
				synctest.Wait()
				b.send(succeed, "k", 2)
				b.send(succeed, "other", 3)
				time.Sleep(tt.want - 1)
				b.wantStarts(1, 0)
				b.wantStarts(2)
				if free := len(b.startsOf(3)) > 0; free != (tt.scope == scopeKey) {
					t.Errorf("the other key's message started: %v", free)
				}
				time.Sleep(time.Minute)
				for s := range uint64(3) {
					b.wantFinal(s+1, AckMessage)
				}
				b.close()
			})
		})
	}
}

func TestRetryAfter_forDaysSpendsOneAttempt(t *testing.T) {
	for _, scope := range []supervisor.Scope{supervisor.ScopeRoute, scopeKey} {
		t.Run(string(scope), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, Options{MaxAttempts: 5, Config: supervisor.Config{RetryAfter: scope}})
				b.send(first(30, retryAfter(time.Hour), succeed), "k", 1)
				time.Sleep(48 * time.Hour)
				if o := b.wantFinal(1, AckMessage); o.Attempts > 1 {
					t.Errorf("%d attempts spent", o.Attempts)
				}
				b.close()
			})
		})
	}
}

// A key at its limit is in no queue. When its only run ended with a Retry-After for the route, what it had in the window
// was in no list that anybody looked at, and never started.
func TestRetryAfter_regressionTheRestOfTheKeyIsNotForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{Ordered: true, Concurrency: 2, MaxAttempts: 1})
		b.send(retryAfter(time.Second), "k", 1)
		b.send(succeed, "k", 2)
		time.Sleep(time.Hour)
		b.wantFinal(2, AckMessage)
		b.close()
	})
}
