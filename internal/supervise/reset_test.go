package supervise

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/relaymq/relay/supervisor"
)

// A child that lives for lives seconds crashes; then a message succeeds, and the next one crashes at once.
func TestReset_ofTheRestartCount(t *testing.T) {
	crashes := func(after time.Duration) handlerFunc {
		return func(context.Context, *Message, int) Verdict { time.Sleep(after); panic("boom") }
	}
	for _, tt := range []struct {
		reset        supervisor.Reset
		lives        time.Duration
		success      bool
		first, again time.Duration
	}{
		{resetSuccess, 30 * time.Second, false, time.Second, 2 * time.Second},
		{resetSuccess, 0, true, time.Second, time.Second},
		{supervisor.ResetNever, 30 * time.Second, true, time.Second, 2 * time.Second},
		{supervisor.ResetMinStable, 0, true, time.Second, 2 * time.Second},
		{supervisor.ResetMinStable, 2 * time.Second, false, time.Second, time.Second},
		{"10s", 5 * time.Second, true, time.Second, 2 * time.Second},
		{"10s", 11 * time.Second, false, time.Second, time.Second},
	} {
		t.Run(fmt.Sprintf("%s, lives %v, success %v", tt.reset, tt.lives, tt.success), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, Options{Timeout: time.Hour, Config: supervisor.Config{
					Reset: tt.reset, Restart: supervisor.Backoff{Min: time.Second, Max: time.Hour}, DrainGrace: new(time.Duration(0)),
				}})
				b.redeliver = false
				b.send(panicking, "k", 1)
				time.Sleep(time.Second)
				if tt.success {
					b.send(succeed, "k", 2)
					synctest.Wait()
				}
				b.send(crashes(tt.lives), "k", 3)
				time.Sleep(time.Minute)
				if got := b.delays("k"); fmt.Sprint(got) != fmt.Sprint([]time.Duration{tt.first, tt.again}) {
					t.Errorf("waits %v, want %v, %v", got, tt.first, tt.again)
				}
				b.close()
			})
		})
	}
}

// A trip did not look at how long the child had lived: with after_min_stable a key that never panicked waited for
// restart.max after each trip, for ever.
func TestReset_regressionATripOfAStableChildStartsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{Config: supervisor.Config{
			Reset: supervisor.ResetMinStable, TripAfter: new(2), Window: time.Hour, Restart: supervisor.Backoff{Min: time.Second, Max: time.Hour},
		}})
		b.redeliver = false
		for i := range uint64(4) {
			b.send(failing, "k", 10*i+1, 10*i+2)
			time.Sleep(10 * time.Second)
			b.send(succeed, "k", 10*i+3)
			time.Sleep(10 * time.Second)
		}
		if got := b.delays("k"); fmt.Sprint(got) != "[1s 1s 1s 1s]" {
			t.Errorf("waits %v", got)
		}
		b.close()
	})
}

// An idle key was forgotten at once when its only stop was a clean one, and with it the restart that counts.
func TestReset_regressionACleanStopIsRememberedWhileItMatters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{Config: supervisor.Config{Reset: "10s", Restart: supervisor.Backoff{Min: time.Second}, DrainGrace: new(time.Duration(0))}})
		b.send(stopping, "k", 1)
		time.Sleep(3 * time.Second)
		b.send(stopping, "k", 2)
		synctest.Wait()
		if got := b.delays("k"); fmt.Sprint(got) != "[1s 2s]" {
			t.Errorf("waits %v", got)
		}
		b.close()
	})
}
