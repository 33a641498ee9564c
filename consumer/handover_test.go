package consumer

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/supervisor"
)

// An order to hand over moves the route while messages come: none is lost, none is handled twice or out of order, and none waits for a second.
func TestHandover_underLoad(t *testing.T) {
	t.Parallel()
	s := newSingle(t)
	s.route.Order = supervisor.OrderKey
	var mu sync.Mutex
	waited := time.Duration(0)
	all := map[string]*Relay{}
	for _, name := range []string{"a", "b", "c"} {
		h := s.handler(name)
		all[name], _, _ = s.instanceWith(name, HandlerFunc(func(ctx context.Context, m *Msg) error {
			mu.Lock()
			waited = max(waited, time.Since(m.Time))
			mu.Unlock()
			return h.(HandlerFunc)(ctx, m)
		}))
	}
	holder := s.holder(all)
	stop, published := make(chan struct{}), make(chan int)
	go func() {
		n := 0
		defer func() { published <- n }()
		for {
			select {
			case <-stop:
				return
			case <-time.After(2 * time.Millisecond):
				if _, err := s.js.Publish(t.Context(), "orders."+string(rune('a'+n%7)), nil); err != nil {
					t.Error(err)
					return
				}
				n++
			}
		}
	}()
	who := []string{holder}
	for i := range 5 {
		time.Sleep(200 * time.Millisecond)
		order := control.HandoverOrder{Route: "billing", From: holder}
		if i%2 == 1 { // in turn to a certain one
			for name := range all {
				if name != holder {
					order.To = name
				}
			}
		}
		list, bad, err := control.Handover(t.Context(), s.nc, "relay", order)
		if err != nil || len(bad) > 0 || len(list) != 3 {
			t.Fatalf("%+v, bad %v, %v", list, bad, err)
		}
		for _, h := range list {
			if h.Giving != (h.Instance == holder) || h.Resting != (h.Instance != holder && order.To != "" && h.Instance != order.To) {
				t.Errorf("%+v of %+v", h, order)
			}
		}
		was := holder
		s.eventually("another one has the route", func() bool { holder = s.holder(all); return holder != was })
		if order.To != "" && holder != order.To {
			t.Errorf("%s has it, and not %s", holder, order.To)
		}
		who = append(who, holder)
	}
	close(stop)
	n := <-published
	s.eventually("all are handled", func() bool { return s.handled() == n })
	s.settled("ORDERS", "billing")
	s.check()
	for seq, times := range s.starts {
		if times != 1 {
			t.Errorf("message %d was started %d times", seq, times)
		}
	}
	t.Logf("held by %s; %d messages, of which none waited for more than %v", strings.Join(who, ", "), n, waited)
	if waited > 5*time.Second { // much less on a machine that does nothing else
		t.Errorf("a message waited for %v", waited)
	}
}

// Orders that cannot be followed say why, and change nothing.
func TestHandover_refuses(t *testing.T) {
	t.Parallel()
	s := newSingle(t)
	everybody := Route{Name: "all", Subjects: []string{"other.>"}, Stream: "OTHER", Start: StartAll, Handler: HandlerFunc(func(context.Context, *Msg) error { return nil })}
	s.stream("OTHER", "other.>")
	one := s.route
	one.Handler = s.handler("a")
	r, _ := s.start(Config{Instance: "a"}, one, everybody)
	s.eventually("it has the route", func() bool { h := r.Status().Routes[0].Holder; return h != nil && h.Here })
	for order, want := range map[control.HandoverOrder]string{
		{Route: "billing", From: "a"}:              "no other instance stands by for the route",
		{Route: "billing", From: "a", To: "b"}:     "instance b does not stand by for the route",
		{Route: "billing", From: "a", To: "a"}:     "this instance already has the route",
		{Route: "billing", From: "b"}:              "instance a has the route",
		{Route: "all", From: "a"}:                  "all instances handle messages of the route, so there is nothing to hand over",
		{Route: "nobody", From: "a"}:               "",
		{Route: "billing", From: "a", Format: 100}: "no other instance stands by for the route", // what is sent has the format of this version
	} {
		for {
			list, bad, err := control.Handover(t.Context(), s.nc, "relay", order)
			if len(list) == 1 && strings.Contains(list[0].Refused, "cannot prove that it has the route") { // a busy machine
				continue
			}
			if err != nil || len(bad) > 0 || len(list) != 1 || list[0].Refused != want || list[0].Giving || list[0].Resting {
				t.Errorf("%+v: %+v, bad %v, %v", order, list, bad, err)
			}
			break
		}
	}
	if h := r.Status().Routes[0].Holder; !h.Here {
		t.Errorf("it has the route no more: %+v", h)
	}
	s.publish("orders.eu", 3)
	s.eventually("it goes on", func() bool { return s.handled() == 3 })
}
