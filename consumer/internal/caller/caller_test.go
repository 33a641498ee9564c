package caller

import (
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"github.com/relaymq/relay/internal/natstest"
	"github.com/relaymq/relay/internal/subject"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, natstest.Leaks()...) }

var stored = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func policy() *Policy {
	return &Policy{Reply: []string{"_INBOX.>", "answers.*"}, Interest: []string{"_INBOX.>"}, Own: []string{"relay", "orders.dlq"}}
}

func TestPolicy_Read(t *testing.T) {
	for name, c := range map[string]struct {
		header  nats.Header
		want    Call
		refused int
	}{
		"nothing":           {nats.Header{"Relay-Id": {"x"}, "Content-Type": {"y"}, "Relay-Deadlines": {"z"}}, Call{}, 0},
		"all, in any case":  {nats.Header{"relay-deadline": {"2026-01-02T04:04:05+01:00"}, "RELAY-INTEREST": {"_INBOX.a.i"}, "Relay-Reply-To": {"answers.b"}}, Call{Deadline: stored, Interest: "_INBOX.a.i", ReplyTo: "answers.b"}, 0},
		"expires in":        {nats.Header{"Relay-Expires-In": {"90s"}}, Call{Deadline: stored.Add(90 * time.Second)}, 0},
		"the earlier one":   {nats.Header{"Relay-Expires-In": {"90s"}, "Relay-Deadline": {"2026-01-02T03:04:06Z"}}, Call{Deadline: stored.Add(time.Second)}, 0},
		"no time":           {nats.Header{"Relay-Deadline": {"tomorrow"}, "Relay-Expires-In": {"-1s"}}, Call{}, 2},
		"long":              {nats.Header{"Relay-Deadline": {strings.Repeat("2", 1000)}, "Relay-Expires-In": {strings.Repeat("1h", 1000)}}, Call{}, 2},
		"twice":             {nats.Header{"Relay-Reply-To": {"_INBOX.a", "_INBOX.b"}}, Call{}, 1},
		"twice by case":     {nats.Header{"Relay-Reply-To": {"_INBOX.a"}, "relay-reply-to": {"_INBOX.a"}}, Call{}, 1},
		"one is refused":    {nats.Header{"Relay-Reply-To": {"$JS.API.INFO"}, "Relay-Interest": {"_INBOX.i"}}, Call{Interest: "_INBOX.i"}, 1},
		"relay's own":       {nats.Header{"Relay-Reply-To": {"relay.ctl.act.x"}, "Relay-Interest": {"orders.dlq.x"}}, Call{}, 2},
		"by another's list": {nats.Header{"Relay-Interest": {"answers.b"}}, Call{}, 1},
		"empty":             {nats.Header{"Relay-Interest": {""}, "Relay-Reply-To": {}}, Call{}, 1},
	} {
		got, refused := policy().Read(c.header, stored)
		if got == nil {
			got = &Call{}
		}
		if !got.Deadline.Equal(c.want.Deadline) || got.Interest != c.want.Interest || got.ReplyTo != c.want.ReplyTo || len(refused) != c.refused {
			t.Errorf("%s: %+v, %v", name, got, refused)
		}
	}
}

// Whatever a publisher writes: what relay publishes to is a literal subject that the route permits, and nobody's own.
func FuzzPolicy_Read(f *testing.F) {
	for _, s := range []string{"_INBOX.a.b", "$JS.API.>", "relay.ctl.x", "_INBOX.*", "a\x00b", "_INBOX..", "2026-01-02T04:04:05+01:00", "30s", "-5h", "\r\n", "_INBOX.ä"} {
		f.Add(s, s, s, s)
	}
	f.Fuzz(func(t *testing.T, deadline, in, interest, reply string) {
		p := policy()
		c, _ := p.Read(nats.Header{"Relay-Deadline": {deadline}, "relay-expires-in": {in}, "Relay-Interest": {interest}, "RELAY-REPLY-TO": {reply}}, stored)
		if c == nil {
			return
		}
		for value, permitted := range map[string][]string{c.Interest: p.Interest, c.ReplyTo: p.Reply} {
			if value == "" {
				continue
			}
			ok := false
			for _, pattern := range permitted {
				ok = ok || subject.Matches(pattern, value)
			}
			if !ok || strings.ContainsAny(value, "*> \t\r\n\x00") || strings.HasPrefix(value, "$") || strings.HasPrefix(value, "relay.") || len(value) > maxSubject {
				t.Errorf("permitted: %q", value)
			}
		}
	})
}

// When the absence of a caller counts.
func TestLine_Gone(t *testing.T) {
	s := natstest.Start(t)
	l := New(s.Conn(t))
	defer l.Close()
	now := time.Now()
	if l.Gone("old", now) {
		t.Error("counts although the connection has just come up, and callers may be reconnecting")
	}
	l.SetGrace(0, Reconnecting)
	for _, c := range []struct {
		id    string
		after time.Duration
		want  bool
	}{
		{"a", 0, false}, {"a", time.Second, false}, {"a", 4900 * time.Millisecond, false}, {"b", 5 * time.Second, false},
		{"a", 5 * time.Second, true}, {"a", 6 * time.Second, false}, // it was told before: a new one
		{"b", 2 * time.Minute, false}, // too long ago to be the same absence
	} {
		if got := l.Gone(c.id, now.Add(c.after)); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
	l.There("b")
	if l.Gone("b", now.Add(2*time.Minute+5*time.Second)) {
		t.Error("somebody was there in between")
	}
	for i := range 2 * maxAbsent {
		l.Gone(string(rune('a'+i%26))+time.Duration(i).String(), now)
	}
	if len(l.absent) > maxAbsent {
		t.Errorf("%d are remembered", len(l.absent))
	}
}

// All questions and replies of a line share one subscription, and each gets its own answer.
func TestLine_answers(t *testing.T) {
	s := natstest.Start(t)
	nc := s.Conn(t)
	l := New(s.Conn(t))
	defer l.Close()
	l.SetGrace(0, time.Second)
	answers := map[string]*nats.Msg{"yes": {}, "no": {Header: nats.Header{"relay-interested": {"NO"}}}, "other": {Header: nats.Header{"Relay-Interested": {"yes"}}, Data: []byte("x")}}
	for name, answer := range answers {
		if _, err := nc.Subscribe("i."+name, func(q *nats.Msg) {
			if q.Header.Get("Relay-Id") != "id" || q.Header.Get("Relay-Subject") != "orders.eu" {
				t.Errorf("asked with %v", q.Header)
			}
			_ = q.RespondMsg(&nats.Msg{Header: answer.Header, Data: answer.Data})
		}); err != nil {
			t.Fatal(err)
		}
	}
	told := make(chan *nats.Msg, 1)
	if _, err := nc.ChanSubscribe("r.here", told); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	asked := map[string]*Asked{}
	for _, name := range []string{"yes", "no", "other", "nobody"} {
		a, err := l.Ask("i."+name, "id", "orders.eu")
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		asked[name] = a
	}
	for name, want := range map[string]Answer{"yes": Yes, "no": No, "other": Yes, "nobody": Nobody} {
		if got, ok := asked[name].Wait(t.Context(), 30*time.Second); !ok || got != want || asked[name].Interrupted() {
			t.Errorf("%s: %v, %v", name, got, ok)
		}
	}
	if got := <-tell(t, l, &Telling{Msg: &nats.Msg{Subject: "r.here", Data: []byte("result")}}); got != Delivered || string((<-told).Data) != "result" {
		t.Errorf("here: %v", got)
	}
	if n := l.nc.NumSubscriptions(); n != 1 {
		t.Errorf("%d subscriptions", n)
	}
}

// Closed and draining lines answer nobody, and hold nobody up.
func TestLine_end(t *testing.T) {
	s := natstest.Start(t)
	nc := s.Conn(t)
	if _, err := nc.Subscribe("silent", func(*nats.Msg) {}); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	l := New(s.Conn(t))
	a, err := l.Ask("silent", "id", "s")
	if err != nil {
		t.Fatal(err)
	}
	l.Drain()
	l.Drain()
	if _, ok := a.Wait(t.Context(), time.Hour); ok || !a.Interrupted() {
		t.Error("a drain waits for an answer")
	}
	a.Close()
	l.Close()
	if _, err := l.Ask("silent", "id", "s"); err != ErrClosed {
		t.Error(err)
	}
	if len(l.open) > 0 {
		t.Errorf("%d questions are left", len(l.open))
	}
}

// tell has a reply told that is held until its caller's absence counts, and returns where what became of it will be said.
func tell(t *testing.T, l *Line, r *Telling) <-chan Told {
	t.Helper()
	over := make(chan Told, 1)
	if r.Released == nil {
		r.Released = func() {}
	}
	if r.Held == nil {
		r.Held = t.Context()
	}
	if r.Until.IsZero() {
		r.Until = time.Now().Add(time.Hour)
	}
	r.Over = func(told Told) { over <- told }
	l.Tell(r)
	return over
}

// A caller who is away while his result is there gets it when he is back, also when his message is not held any more; and nobody else
// waits for that.
func TestLine_Tell_whoComesBack(t *testing.T) {
	s := natstest.Start(t)
	nc := s.Conn(t)
	l := New(s.Conn(t))
	defer l.Close()
	l.SetGrace(0, 500*time.Millisecond)
	released := make(chan struct{})
	over := tell(t, l, &Telling{Msg: &nats.Msg{Subject: "r.away", Data: []byte("result")}, Released: func() { close(released) }})
	got := make(chan *nats.Msg, 10)
	if _, err := nc.ChanSubscribe("r.here", got); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	if told := <-tell(t, l, &Telling{Msg: &nats.Msg{Subject: "r.here"}}); told != Delivered {
		t.Errorf("the other: %v", told)
	}
	select {
	case <-over:
		t.Error("given up")
	case <-released:
	}
	natstest.Eventually(t, "one is to be told", func() bool { return telling(l) == 1 }) // it may be being told just now
	<-got
	if _, err := nc.ChanSubscribe("r.away", got); err != nil {
		t.Fatal(err)
	}
	if m := <-got; string(m.Data) != "result" {
		t.Errorf("%q", m.Data)
	}
	if told := <-over; told != Delivered || telling(l) != 0 {
		t.Errorf("%v, %d are left", told, telling(l))
	}
}

// That the server passed a reply on does not mean that its caller has it: one that confirms is told again until it does.
func TestLine_Tell_confirmed(t *testing.T) {
	s := natstest.Start(t)
	nc := s.Conn(t)
	l := New(s.Conn(t))
	defer l.Close()
	tries := 0
	if _, err := nc.Subscribe("r.here", func(m *nats.Msg) {
		if tries++; tries == 2 {
			_ = m.Respond(nil)
		}
	}); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	if told := <-tell(t, l, &Telling{Msg: &nats.Msg{Subject: "r.here"}, Confirm: true}); told != Delivered || tries != 2 {
		t.Errorf("%v after %d", told, tries)
	}
	if told := <-tell(t, l, &Telling{Msg: &nats.Msg{Subject: "r.nobody"}, Once: true}); told != NotThere {
		t.Errorf("once: %v", told)
	}
}

// Thousands of callers who are away keep nobody from being told who is there, and not more than a bounded number of replies.
func TestLine_Tell_crowd(t *testing.T) {
	s := natstest.Start(t)
	nc := s.Conn(t)
	l := New(s.Conn(t))
	l.SetGrace(0, time.Hour)
	var released atomic.Int32
	for i := range maxTellings + 1000 {
		tell(t, l, &Telling{Msg: &nats.Msg{Subject: "r.gone." + strconv.Itoa(i), Data: make([]byte, 1000)}, Released: func() { released.Add(1) }})
	}
	got := make(chan *nats.Msg, 100)
	if _, err := nc.ChanSubscribe("r.here", got); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	for range 100 {
		// Sent while those before it have not been tried.
		if told := <-tell(t, l, &Telling{Msg: &nats.Msg{Subject: "r.here"}}); told != Delivered && told != Sent {
			t.Fatalf("%v", told)
		}
		<-got
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("took %v", took)
	}
	if n := telling(l); n > maxTellings {
		t.Errorf("%d are kept", n)
	}
	if n := released.Load(); n == 0 {
		t.Error("all messages of those who are away are held")
	}
	l.Close() // gives them up
	if n := released.Load(); n != maxTellings+1000 {
		t.Errorf("%d were released", n)
	}
}

// telling is how many replies are not delivered yet.
func telling(l *Line) int {
	l.teller.mu.Lock()
	defer l.teller.mu.Unlock()
	return len(l.teller.fresh) + len(l.teller.waiting)
}

// A caller who promised to confirm, and does not, has its message held for no longer than one who is away.
func TestLine_Tell_whoNeverConfirms(t *testing.T) {
	s := natstest.Start(t)
	nc := s.Conn(t)
	l := New(s.Conn(t))
	defer l.Close()
	l.SetGrace(0, 100*time.Millisecond)
	if _, err := nc.Subscribe("r.mute", func(*nats.Msg) {}); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	released := make(chan struct{})
	over := tell(t, l, &Telling{Msg: &nats.Msg{Subject: "r.mute"}, Confirm: true, Released: func() { close(released) }})
	<-released
	if len(over) > 0 {
		t.Error("given up")
	}
}
