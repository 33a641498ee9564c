package natstest

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestEventually_looksLessOftenTheLongerItTakes(t *testing.T) {
	for _, c := range []struct {
		name        string
		after, look time.Duration
		most        int           // looks
		late        time.Duration // at most, after it is so
	}{
		{name: "a moment", after: 20 * time.Millisecond, most: 12, late: 2 * time.Millisecond},
		{name: "a second", after: time.Second, most: 90, late: 50 * time.Millisecond},
		{name: "half a minute", after: 30 * time.Second, most: 700, late: 50 * time.Millisecond},
		{name: "looks that take long", after: 30 * time.Second, look: 40 * time.Millisecond, most: 160, late: 240 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began, looks := time.Now(), 0
				Eventually(t, "it is so", func() bool {
					looks++
					time.Sleep(c.look)
					return time.Since(began) >= c.after
				})
				if took := time.Since(began); took > c.after+c.late {
					t.Errorf("seen %v after it was so", took-c.after)
				}
				if looks > c.most {
					t.Errorf("%d looks", looks)
				}
			})
		})
	}
}
