package supervise

import (
	"testing"
	"time"

	"github.com/relaymq/relay/supervisor"
)

// The parts of a group, each by itself.

func TestWindow_asksForMoreOnceWhenHalfIsUsed(t *testing.T) {
	var w window
	now := time.Now()
	room := w.free(0, 64, now)
	if room.Messages != 128 || room.Bytes != MaxWindowBytes {
		t.Fatalf("room for %+v beside 64 slots, want 128 messages: as many as run, and as many in front of them", room)
	}
	for range room.Messages {
		w.put(&Message{Size: 10})
	}
	if !w.full(0, 64, now) || w.low(0) {
		t.Error("a full window asks for more")
	}
	for range 64 {
		w.take(&Message{Size: 10})
	}
	if !w.low(0) || w.low(0) {
		t.Error("a half full window asks for more once")
	}
	w.meter.done = 5000 // within the last quarter of a second
	if room := w.free(0, 64, now); room.Messages != 5000 {
		t.Errorf("room for %d messages beside 64 when 5000 were handled, want 5000", room.Messages)
	}
}

func TestWindow_messagesThatRunAloneDoNotKeepOthersOut(t *testing.T) {
	var w window
	for range 1000 {
		w.put(&Message{Size: 10, Alone: true})
	}
	if used := w.crowding(); used != (usage{}) {
		t.Errorf("they take the room of %+v", used)
	}
	w.put(&Message{Size: 10})
	if used := w.crowding(); used != (usage{1, 10}) {
		t.Errorf("one other message takes the room of %+v", used)
	}
}

func TestStash_boundsAndWhoGoesFirst(t *testing.T) {
	s := stash{most: usage{4, 1000}}
	hold := func(k *key, m *Message) *Message {
		k.held.push(&m.place, m)
		s.put(k, m)
		return m
	}
	a, b := &key{}, &key{}
	a.state, b.state = &a.flow, &waiting{}
	first := hold(a, &Message{Size: 100})
	failed := hold(a, &Message{Size: 100, Attempts: 1})
	hold(b, &Message{Size: 100, Attempts: 1})
	if s.full() || s.failedFull(Flowing) || s.room() != 1 {
		t.Errorf("3 of 4 messages, 2 of them failed: full %v, of failed ones %v, room for %d", s.full(), s.failedFull(Flowing), s.room())
	}
	hold(b, &Message{Size: 900, Attempts: 1})
	if !s.full() || !s.failedFull(Flowing) || s.neverFits(&Message{Size: 1000}) || !s.neverFits(&Message{Size: 1001}) {
		t.Error("1200 of 1000 bytes, 3 failed ones of 2: it is full either way")
	}
	if s.idlest(Flowing) != a || s.idlest(Waiting) != b {
		t.Error("the key that came first gives back first, but for one that waits by itself while the route waits")
	}
	if a.oldest() != first || a.oldestFailed() != failed {
		t.Error("the oldest message goes first, and of those that failed the oldest of these")
	}
	s.touch(a)
	if s.idlest(Flowing) != b {
		t.Error("a key that is active is not the idlest")
	}
	for _, k := range []*key{a, b} {
		for m := range k.held.all() {
			k.held.remove(&m.place)
			s.take(k, m)
		}
	}
	if s.usage != (usage{}) || s.failed != (usage{}) || s.keys.n+s.failedKeys.n > 0 {
		t.Errorf("an empty stash holds %+v, of these failed %+v, of %d keys", s.usage, s.failed, s.keys.n)
	}
}

func TestSlots_firstDeliveriesAndOthersTakeTurns(t *testing.T) {
	s := newSlots(8, time.Second, new(moment))
	a, b := &key{name: "a"}, &key{name: "b"}
	s.ready[fresh].push(a)
	s.ready[fresh].push(b)
	s.ready[returned].push(a)
	order := ""
	for k, from := s.pop(new(route)); k != nil; k, from = s.pop(new(route)) {
		order += k.name
		s.turn = from.other()
	}
	if order != "aab" {
		t.Errorf("in the order %s, want a new message of a, an old one of a, a new one of b", order)
	}
}

// The newest and the oldest took turns with each start, and so did new messages and others: the turn of the newest was always one of the
// others.
func TestSlots_regressionTheNewestHasATurnBesideOthers(t *testing.T) {
	s := newSlots(8, time.Second, new(moment))
	flows := &route{anew: 8}
	for _, name := range []string{"a", "b", "c", "d"} {
		s.ready[fresh].push(&key{name: name})
		s.ready[returned].push(&key{name: "-"})
	}
	order := ""
	for k, from := s.pop(flows); k != nil; k, from = s.pop(flows) {
		order += k.name
		s.turn = from.other()
	}
	if order != "d-a-c-b-" {
		t.Errorf("in the order %s, want d, a, c and b, each before one that was here before", order)
	}
}

func TestNursery_hasRoomWhileAChildIsIdle(t *testing.T) {
	n := newNursery(Options{Config: supervisor.Config{MaxChildren: 1}, New: nil}, time.Now())
	if n.shared == nil || !n.room() {
		t.Error("without a factory all keys share a child")
	}
	n.kids = 1
	if n.room() {
		t.Error("there is room for a second child of one")
	}
	k := new(key)
	if n.idle.push(&k.inIdle, k); !n.room() {
		t.Error("an idle child makes no room")
	}
}

func TestAlarm_wakesKeysInTheOrderOfTheirTimes(t *testing.T) {
	now := time.Now()
	a := alarm{timer: time.NewTimer(time.Hour)}
	defer a.stop()
	keys := map[string]*key{}
	for _, name := range []string{"a", "b", "c"} {
		keys[name] = &key{name: name, wakeIndex: -1}
	}
	a.wake(keys["a"], now.Add(3*time.Second))
	a.wake(keys["b"], now.Add(2*time.Second))
	a.wake(keys["c"], now.Add(time.Second))
	a.wake(keys["a"], now)                    // sooner counts
	a.wake(keys["b"], now.Add(5*time.Second)) // later does not
	a.forget(keys["c"])
	if !a.armed.Equal(now) {
		t.Errorf("armed for %v from now", a.armed.Sub(now))
	}
	order := ""
	for k := a.due(now.Add(2 * time.Second)); k != nil; k = a.due(now.Add(2 * time.Second)) {
		order += k.name
	}
	if order != "ab" || len(a.keys) > 0 {
		t.Errorf("woken %q, %d are left", order, len(a.keys))
	}
}

func TestRetries_mostFailWhenTheyDid(t *testing.T) {
	var q retries
	for range 6 {
		q.ended(Retry)
	}
	if !q.mostFail() {
		t.Error("six failed")
	}
	q.ended(Ack)
	if q.ended(Dead); q.mostFail() {
		t.Error("two answers after six failures")
	}
}

// The pace begins with hundreds a second and falls; the oldest and the newest take turns.
func TestInquiry_itsPaceFalls(t *testing.T) {
	now := time.Now()
	q := inquiry{since: now}
	asked := func(d time.Duration) (n int) {
		for end := now.Add(d); now.Before(end); now = now.Add(time.Millisecond) {
			for !now.Before(q.next) {
				newest := q.newest
				if q.took(now); q.newest == newest {
					t.Fatal("they do not take turns")
				}
				n++
			}
		}
		return n
	}
	for _, tt := range []struct {
		for_        time.Duration
		least, most int
	}{
		{time.Second, 380, 420}, {9 * time.Second, 2900, 3500}, {50 * time.Second, 7000, 9000}, {4 * time.Minute, 5000, 7500},
		{time.Minute, 1190, 1210}, {5 * time.Minute, 5900, 6100},
	} {
		if n := asked(tt.for_); n < tt.least || n > tt.most {
			t.Errorf("%d in the next %v, want %d to %d", n, tt.for_, tt.least, tt.most)
		}
	}
}

// While the stash is full an ordered group asks for few messages, and for none while those that it called back are not ready to come.
func TestOrder_asksForWhatTheStashHasRoomFor(t *testing.T) {
	now := time.Now()
	of := func() *moment { return &moment{now: now, opts: &Options{Ordered: true, Concurrency: 8}} }
	for _, tt := range []struct {
		what    string
		order   order
		stash   int
		failing bool
		want    int
	}{
		{"there is room", order{}, 50, false, 50},
		{"more room than in the window", order{}, 5000, false, 100},
		{"nothing is done", order{}, 0, false, 8},
		{"its keys go on", order{progress: now}, 0, false, 32},
		{"its keys go on, and it was asked just now", order{progress: now, glanced: now}, 0, false, 0},
		{"its keys go on, and much failed", order{progress: now}, 0, true, 100},
		{"three were called", order{called: 3, callsReady: now, glanced: now}, 0, false, 3},
		{"three were called a moment ago", order{called: 3, callsReady: now.Add(calledFor)}, 50, false, 0},
	} {
		o := tt.order
		o.moment = of()
		s := stash{usage: usage{messages: 5000 - tt.stash}, most: usage{messages: 5000}}
		if tt.failing {
			s.failed.messages = 5000 / 4
		}
		if got := o.room(100, &s); got != tt.want {
			t.Errorf("%s: room for %d messages, want %d", tt.what, got, tt.want)
		}
	}
	o := order{moment: &moment{now: now, opts: &Options{Concurrency: 8}}, callsReady: now.Add(time.Second)}
	if got := o.room(100, new(stash)); got != 100 {
		t.Errorf("without an order there is room for %d messages, want 100", got)
	}
}

// More than there is room for is pulled of an ordered route only while keys that failed do not go on: one that is merely slow would have all of its
// stream come and go.
func TestOrder_isJammedByKeysThatFailed(t *testing.T) {
	now := time.Now()
	for _, tt := range []struct {
		what         string
		order        order
		here, failed int
		want         bool
	}{
		{"they wait", order{}, 100, 1, true},
		{"they are slow", order{}, 100, 0, false},
		{"there is room", order{}, 99, 1, false},
		{"they go on", order{progress: now}, 100, 1, false},
		{"some were called", order{called: 1}, 100, 1, false},
		{"earlier messages are waited for", order{gate: gate{until: now.Add(time.Second)}}, 100, 1, false},
	} {
		o := tt.order
		o.moment = &moment{now: now, opts: &Options{Ordered: true}}
		if got := o.jammed(&stash{usage: usage{messages: tt.here}, failed: usage{messages: tt.failed}, most: usage{messages: 100}}); got != tt.want {
			t.Errorf("%s: jammed %v, want %v", tt.what, got, tt.want)
		}
	}
}

// A key has half of the fallback while it is not alone, and a slot that is kept goes to a spent message only.
func TestFallback_whoMayHaveASlot(t *testing.T) {
	now := time.Now()
	for _, tt := range []struct {
		what               string
		lent, ofKey        int
		kept, ordered, run bool
		others             bool
		waits, spent       bool
	}{
		{what: "alone", lent: 3, ofKey: 3, waits: true, spent: true},
		{what: "all are taken", lent: 4, ofKey: 0},
		{what: "not alone", lent: 2, ofKey: 2, others: true},
		{what: "another key", lent: 2, ofKey: 0, others: true, waits: true, spent: true},
		{what: "the last one is kept", lent: 3, ofKey: 0, kept: true, spent: true},
		{what: "one is kept, beyond the share", lent: 2, ofKey: 2, kept: true, others: true, spent: true},
		{what: "ordered", lent: 1, ofKey: 0, ordered: true, waits: true, spent: true},
		{what: "ordered, and it has one", lent: 1, ofKey: 1, ordered: true},
		{what: "ordered, and one runs", ordered: true, run: true},
	} {
		f := fallback{moment: &moment{now: now, opts: &Options{Ordered: tt.ordered}}, Fallback: Fallback{Concurrency: 4}, lent: tt.lent}
		if tt.kept {
			f.kept = now.Add(time.Second)
		}
		k := &key{lent: tt.ofKey}
		if tt.run {
			k.runs = 1
		}
		var recent recentKeys
		if tt.others {
			recent.saw("another", now)
		}
		if waits, spent := f.mayLend(k, &recent), f.mayLendSpent(k, &recent); waits != tt.waits || spent != tt.spent {
			t.Errorf("%s: one that waits %v, a spent one %v, want %v, %v", tt.what, waits, spent, tt.waits, tt.spent)
		}
	}
}

// What others say of a key trips it here together with its failures here, for a while.
func TestPeers_whatTheySayOfAKey(t *testing.T) {
	now := time.Now()
	at := &moment{now: now, cfg: &supervisor.Config{TripAfter: new(5), Window: time.Minute}}
	p := peers{moment: at}
	k := &key{name: "k", trouble: trouble{failures: 3}}
	k.state = &k.flow
	if p.elsewhere(k) {
		t.Error("nobody said anything")
	}
	p.hearOfKey(k, "k", Hint{Kind: ofFailing, N: 1})
	if p.elsewhere(k) {
		t.Error("4 failures of 5 are enough")
	}
	p.hearOfKey(k, "k", Hint{Kind: ofFailing, N: 1})
	if !p.elsewhere(k) {
		t.Error("5 failures of 5 are not enough")
	}
	if at.now = now.Add(peersFor); p.elsewhere(k) {
		t.Error("old failures count")
	}
	p.hearOfKey(k, "k", Hint{Kind: ofWaits})
	if at.now = at.now.Add(peersFor); !p.elsewhere(k) {
		t.Error("a wait elsewhere does not count")
	}
	p.hearOfKey(k, "k", Hint{Kind: ofFlows})
	if p.elsewhere(k) {
		t.Error("a wait elsewhere counts after its end")
	}
}

// The states, as far as time and messages that arrive are concerned.
func TestKeyStates_whatTheyAccept(t *testing.T) {
	g := New(Options{Config: supervisor.Config{ForwardDuringGrace: new(false)}})
	defer g.Close(t.Context())
	turn := g.lock()
	defer turn.unlock()
	k := turn.newKey("k")
	m := &Message{Key: "k"}
	grace := &probing{grace: turn.now.Add(time.Second)}
	for _, tt := range []struct {
		what  string
		state keyState
		want  bool
	}{
		{"flowing", &k.flow, true},
		{"waiting", &waiting{end: turn.now.Add(time.Second)}, false},
		{"probing", &probing{grace: turn.now}, true},
		{"in the grace", grace, false},
		{"with a probe", &probing{probe: new(run)}, false},
		{"suspended", &suspended{}, false},
		{"stopped", stopped{}, false},
	} {
		if got := tt.state.accepts(turn, k, m); got != tt.want {
			t.Errorf("%s: a message may start: %v, want %v", tt.what, got, tt.want)
		}
	}
	if grace.until() != grace.grace || !(&suspended{}).until().IsZero() {
		t.Error("a grace ends by itself, a suspension does not")
	}
}

// Every move between states is drawn in the package comment, and no other one is made.
func TestKeyStates_moves(t *testing.T) {
	g := New(Options{})
	defer g.Close(t.Context())
	turn := g.lock()
	defer turn.unlock()
	states := []keyState{new(flowing), new(waiting), new(probing), new(suspended), stopped{}}
	for _, from := range states {
		for _, to := range states {
			allowed := func() (ok bool) {
				defer func() { ok = recover() == nil }()
				(&key{state: from}).move(&turn.moment, to, "test", 0)
				return true
			}()
			if allowed != mayMove(from.is(), to.is()) {
				t.Errorf("from %v to %v: %v", from.is(), to.is(), allowed)
			}
		}
	}
}
