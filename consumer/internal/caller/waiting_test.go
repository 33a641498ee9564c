package caller

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/internal/natstest"
)

// askers are messages that wait for their callers: of those one says yes, one no, one never answers, and one is not there.
type askers struct {
	*Waiting
	t     *testing.T
	inbox string
	count [Kinds]atomic.Int64
	asked atomic.Int64 // questions that callers got

	mu    sync.Mutex
	left  map[string]Left // by id
	order []string
}

func newAskers(t *testing.T, most int, rules Rules) *askers {
	t.Helper()
	s := natstest.Start(t)
	nc, callers := s.Conn(t), s.Conn(t)
	w := &askers{t: t, inbox: "_INBOX.callers", left: make(map[string]Left)}
	line := New(nc)
	line.SetGrace(0, 100*time.Millisecond)
	t.Cleanup(line.Close)
	for name, answer := range map[string]*nats.Msg{"yes": {}, "no": {Header: nats.Header{HeaderInterested: {"no"}}}, "mute": nil} {
		_, err := callers.Subscribe(w.inbox+"."+name, func(m *nats.Msg) {
			w.asked.Add(1)
			if answer != nil {
				_ = m.RespondMsg(&nats.Msg{Header: answer.Header})
			}
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := callers.Flush(); err != nil {
		t.Fatal(err)
	}
	w.Waiting = NewWaiting(WaitingConfig{
		Line: line, Most: most, Rules: func() Rules { return rules }, More: func() {}, Count: func(c Counted) { w.count[c].Add(1) },
	})
	t.Cleanup(w.Close)
	return w
}

func (w *askers) ask(who string, i, size int) {
	id := fmt.Sprint(who, i)
	w.Ask(&Question{ID: id, Interest: w.inbox + "." + who, Subject: "orders", Size: size, End: func(why Left) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if was, twice := w.left[id]; twice {
			w.t.Errorf("%s left twice: %d and %d", id, was, why)
		}
		w.left[id] = why
		w.order = append(w.order, id)
	}})
}

func (w *askers) eventually(what string, ok func(left map[string]Left) bool) {
	w.t.Helper()
	natstest.Eventually(w.t, what, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return ok(w.left)
	}, w.left)
}

// Each message leaves with what its caller said, or with that it said nothing.
func TestWaiting_answers(t *testing.T) {
	t.Parallel()
	for drop, silent := range map[bool]Left{true: Silent, false: Unheard} {
		w := newAskers(t, 100, Rules{Timeout: 200 * time.Millisecond, Drop: drop, Slots: 10})
		for _, who := range []string{"yes", "no", "mute", "nobody"} {
			w.ask(who, 0, 1)
		}
		if n := w.Len(); n > 4 || n < 1 {
			t.Errorf("%d wait", n)
		}
		if w.Room() >= maxYoung {
			t.Error("there is room for as many questions as without any")
		}
		want := map[string]Left{"yes0": Wanted, "no0": Unwanted, "mute0": silent, "nobody0": Absent}
		w.eventually("all leave", func(left map[string]Left) bool { return len(left) == 4 })
		for id, why := range want {
			if w.left[id] != why {
				t.Errorf("%s left as %d, want %d", id, w.left[id], why)
			}
		}
		for c, n := range map[Counted]int64{CountedYes: 1, CountedNo: 1, CountedUnknown: 1, CountedNobody: 1} {
			if got := w.count[c].Load(); got != n {
				t.Errorf("%v was counted %d times", c, got)
			}
		}
		if w.Len() != 0 || w.bytes != 0 {
			t.Errorf("%d wait, of %d bytes", w.Len(), w.bytes)
		}
	}
}

// Messages whose callers do not answer come back a few at a time: as many as there are slots, and one.
func TestWaiting_unheardAFewAtATime(t *testing.T) {
	t.Parallel()
	w := newAskers(t, 100, Rules{Timeout: 20 * time.Millisecond, Slots: 3})
	for i := range 20 {
		w.ask("mute", i, 1)
	}
	w.eventually("the first ones", func(left map[string]Left) bool { return len(left) == 4 })
	time.Sleep(100 * time.Millisecond)
	for n := 4; n < 20; n++ {
		w.eventually("no more", func(left map[string]Left) bool { return len(left) == n })
		w.Started()
		w.eventually("one more", func(left map[string]Left) bool { return len(left) == n+1 })
	}
}

// What waits has a bound. Those whose callers are not there make room for others; what finds none leaves at once.
func TestWaiting_isBounded(t *testing.T) {
	t.Parallel()
	w := newAskers(t, 3, Rules{Timeout: time.Minute, Slots: 3})
	w.cfg.Line.SetGrace(0, time.Minute)
	for i := range 3 {
		w.ask("nobody", i, 1)
	}
	w.eventually("it is known that nobody is there", func(map[string]Left) bool {
		w.Waiting.mu.Lock()
		defer w.Waiting.mu.Unlock()
		return len(w.absent) == 3
	})
	w.ask("mute", 0, MaxWaitingBytes)
	w.eventually("they make room", func(left map[string]Left) bool { return len(left) == 3 && left["nobody0"] == Crowded })
	if w.Len() != 1 {
		t.Errorf("%d wait", w.Len())
	}
	w.ask("mute", 1, 1)
	w.eventually("there is no room", func(left map[string]Left) bool { _, is := left["mute1"]; return is && left["mute1"] == Crowded })
}

// Once it is closed all leave, and nobody is asked.
func TestWaiting_close(t *testing.T) {
	t.Parallel()
	w := newAskers(t, 100, Rules{Timeout: time.Minute, Slots: 3})
	for i := range 5 {
		w.ask("mute", i, 1)
	}
	w.Close()
	w.ask("yes", 0, 1)
	w.eventually("all left", func(left map[string]Left) bool { return len(left) == 6 })
	for id, why := range w.left {
		if why != Ended {
			t.Errorf("%s left as %d", id, why)
		}
	}
}
