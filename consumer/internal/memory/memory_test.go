package memory

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"pgregory.net/rapid"

	"github.com/relaymq/relay/ack"
	"github.com/relaymq/relay/internal/supervise"
)

// session is one whose deliveries end only by being let go.
func session() *ack.Session {
	return ack.NewSession(ack.Config{Inbox: "_INBOX.x", Link: func() uint64 { return 0 }, AckWait: time.Hour})
}

type fataler interface {
	Helper()
	Fatal(...any)
}

// arrive has a delivery with a body of that size arrive. It returns its size as counted.
func arrive(t fataler, s *ack.Session, a *Account, number, size int) (*ack.Delivery, int) {
	t.Helper()
	before := a.Holds()
	d, err := s.ReceiveInto(&ack.Delivery{InHand: a.InHand}, &nats.Msg{
		Subject: "s", Data: make([]byte, size), Reply: fmt.Sprintf("$JS.ACK.S.d.1.%d.%d.%d.0", number, number, time.Now().UnixNano()),
	})
	if err != nil || d == nil {
		t.Fatal(d, err)
	}
	return d, a.Holds().Bytes - before.Bytes
}

// What arrives counts until it is let go, and what is free is what is left of the bound. Whoever was told that there is no room hears, once, that
// there is again.
func TestAccount(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		most := supervise.Room{Messages: rapid.IntRange(8, 20).Draw(t, "messages"), Bytes: rapid.IntRange(8, 5000).Draw(t, "bytes")}
		told := 0
		a, s := New(most, func() { told++ }), session()
		var live []*ack.Delivery
		sizes := map[*ack.Delivery]int{}
		bytes, awaits := 0, false
		for n := range rapid.IntRange(1, 60).Draw(t, "steps") {
			if len(live) == 0 || rapid.Bool().Draw(t, "arrives") {
				d, size := arrive(t, s, a, n+1, rapid.IntRange(0, 1000).Draw(t, "size"))
				live, bytes, sizes[d] = append(live, d), bytes+size, size
			} else {
				i := rapid.IntRange(0, len(live)-1).Draw(t, "which")
				d := live[i]
				live, bytes = append(live[:i], live[i+1:]...), bytes-sizes[d]
				d.Release()
			}
			if awaits && len(live) <= most.Messages/8*7 && bytes <= most.Bytes/8*7 {
				if told != 1 {
					t.Fatalf("%d messages, %d bytes of %+v: told %d times", len(live), bytes, most, told)
				}
				awaits = false
			}
			if holds := a.Holds(); holds.Messages != len(live) || holds.Bytes != bytes {
				t.Fatalf("holds %+v, want %d messages, %d bytes", holds, len(live), bytes)
			}
			free := a.Within(supervise.Room{Messages: 10, Bytes: 2000})
			if want := (supervise.Room{Messages: min(10, max(0, most.Messages-len(live))), Bytes: min(2000, max(0, most.Bytes-bytes))}); free != want {
				t.Fatalf("free %+v, want %+v", free, want)
			}
			if full := a.Full(); full != (len(live) >= most.Messages || bytes >= most.Bytes) {
				t.Fatalf("%d messages, %d bytes of %+v: full is %v", len(live), bytes, most, full)
			} else if full && !awaits {
				awaits, told = true, 0
			}
		}
	})
}

// The bytes of what is in a handler are not held: the concurrency bounds them.
func TestAccount_handlersHaveTheirOwn(t *testing.T) {
	t.Parallel()
	a, s := New(supervise.Room{Messages: 10, Bytes: 1000}, func() {}), session()
	_, size := arrive(t, s, a, 1, 2000)
	if !a.Full() {
		t.Error("it is not full")
	}
	a.Handling(size)
	if a.Full() || a.Holds().Bytes != 0 {
		t.Errorf("full %v, holds %+v", a.Full(), a.Holds())
	}
	a.SetMost(supervise.Room{Messages: 1, Bytes: 1000})
	if !a.Full() || a.Most().Messages != 1 {
		t.Errorf("the new bound does not hold: %+v", a.Most())
	}
}

// A body that is fetched waits for room. It is fetched all the same after a while, and not when its message is given up.
func TestAccount_reserve(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, s := New(supervise.Room{Messages: 10, Bytes: 1000}, func() {}), session()
		ctx, cancel := context.WithCancel(t.Context())
		first, _ := arrive(t, s, a, 1, 10)
		second, _ := arrive(t, s, a, 2, 10)
		began := time.Now()
		if err := a.Reserve(ctx, first, 900, func() bool { return false }); err != nil || time.Since(began) != 0 {
			t.Errorf("there is room: %v after %v", err, time.Since(began))
		}
		if holds := a.Holds().Bytes; holds < 900 {
			t.Errorf("only %d bytes are counted", holds)
		}
		time.AfterFunc(2*time.Second, first.Release)
		if err := a.Reserve(ctx, second, 900, func() bool { return false }); err != nil || time.Since(began) < 2*time.Second || time.Since(began) > 3*time.Second {
			t.Errorf("there is room after 2 s: %v after %v", err, time.Since(began))
		}
		third, _ := arrive(t, s, a, 3, 10)
		if err := a.Reserve(ctx, third, 900, func() bool { return time.Since(began) > 5*time.Second }); !errors.Is(err, ErrNoRoom) {
			t.Errorf("it is given up after 5 s: %v after %v", err, time.Since(began))
		}
		began = time.Now()
		if err := a.Reserve(ctx, third, 900, func() bool { return false }); err != nil || time.Since(began) < patience || time.Since(began) > patience+time.Second {
			t.Errorf("nobody makes room: %v after %v", err, time.Since(began))
		}
		waits := make(chan error)
		go func() { waits <- a.Reserve(ctx, third, 900, func() bool { return false }) }()
		synctest.Wait()
		cancel()
		if err := <-waits; !errors.Is(err, ErrNoRoom) {
			t.Errorf("it is cancelled: %v", err)
		}
	})
}
