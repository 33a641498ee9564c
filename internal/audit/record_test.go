package audit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"pgregory.net/rapid"

	"github.com/relaymq/relay/internal/natstest"
)

var anyCounts = rapid.Custom(func(t *rapid.T) Counts {
	n := rapid.Uint64Range(0, 1000)
	return Counts{
		Received: n.Draw(t, "received"), Replayed: n.Draw(t, "replayed"), Done: n.Draw(t, "done"), Fallback: n.Draw(t, "fallback"), Dead: n.Draw(t, "dead"),
		Dropped: n.Draw(t, "dropped"), Expired: n.Draw(t, "expired"), Forgotten: n.Draw(t, "forgotten"), Discarded: n.Draw(t, "discarded"),
		MovedAway: n.Draw(t, "moved away"), MovedHere: n.Draw(t, "moved here"),
	}
})

// What was counted since is the difference, and what came and ended are sums of all kinds.
func TestCounts_sums(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := anyCounts.Draw(t, "a"), anyCounts.Draw(t, "b")
		sum := a.Add(b)
		if sum.Sub(b) != a || sum.Sub(a) != b || sum.In() != a.In()+b.In() || sum.Ended() != a.Ended()+b.Ended() {
			t.Errorf("%+v and %+v: %+v", a, b, sum)
		}
		if a.In() != a.Received+a.Replayed+a.MovedHere || a.Ended() != a.Done+a.Fallback+a.Dead+a.Dropped+a.Expired+a.Forgotten+a.Discarded+a.MovedAway {
			t.Errorf("%+v: %d came, %d ended", a, a.In(), a.Ended())
		}
	})
	d := Deliveries{5, 4, 3}
	if got := d.Add(Deliveries{10, 20, 30}); got != (Deliveries{15, 24, 33}) || got.Sub(Deliveries{10, 20, 30}) != d {
		t.Errorf("%+v", got)
	}
}

// Who begins leaves out what a record of the same durable, or of a later one, has already.
func TestRecord_Began(t *testing.T) {
	made := time.Date(2026, 11, 26, 0, 0, 0, 0, time.UTC)
	r := &Record{Stream: "ORDERS", Durable: "billing", Durables: map[string]Durable{Name("ORDERS", "billing"): {Start: Start{made, 7}}}}
	for name, c := range map[string]struct {
		s    Start
		want bool
	}{
		"as late":                {Start{made, 7}, true},
		"later":                  {Start{made, 9}, true},
		"earlier":                {Start{made, 6}, false},
		"of the durable before":  {Start{made.Add(-time.Second), 9}, true},
		"of the durable that is": {Start{made.Add(time.Second), 9}, false},
	} {
		if got := r.Began(c.s); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// An instance that says nothing for an hour is forgotten. What it had in hand then stays in the record.
func TestRecord_forgetsWhoIsSilent(t *testing.T) {
	now := time.Now()
	a := Addition{Durables: map[string]Durable{}, Hand: 3}
	r := begin("ORDERS", "billing", a)
	r.add("one", "a", 1, a, now)
	a.Hand = 5
	r.add("two", "b", 1, a, now.Add(time.Hour))
	if len(r.Instances) != 2 || r.Killed != 0 {
		t.Errorf("after an hour: %+v", r)
	}
	r.add("two", "b", 2, a, now.Add(time.Hour+time.Second))
	if _, there := r.Instances["one"]; there || len(r.Instances) != 1 || r.Killed != 3 {
		t.Errorf("after more: %+v", r)
	}
}

// Two began at a time, and the one that looked later wrote first: the record becomes that of the other, also for its retries. A durable on
// the retry stream that was made anew is counted from its begin.
func TestRecord_whoLookedEarlierBegins(t *testing.T) {
	main, retry, made := Name("ORDERS", "billing"), Name("RELAY_RETRY", "billing"), time.Now().UTC()
	addition := func(delivered uint64, retryMade time.Time) Addition {
		return Addition{
			Durables: map[string]Durable{
				main:  {Start{made, delivered}, Deliveries{Arrived: 1}},
				retry: {Start{retryMade, delivered}, Deliveries{Arrived: 1}},
			},
			Opening: Opening{At: made.Add(time.Duration(delivered)), Carried: delivered, Moved: delivered},
		}
	}
	late, early := addition(7, made), addition(0, made)
	r := begin("ORDERS", "billing", late)
	r.add("late", "a", 1, late, made)
	r.add("early", "b", 1, early, made)
	if d := r.Durables[retry]; r.Durables[main] != (Durable{Start{made, 0}, Deliveries{Arrived: 2}}) || d != r.Durables[main] {
		t.Errorf("%+v", r.Durables)
	}
	if !r.Whole || r.Carried != 0 || r.Moved != 0 || !r.Since.Equal(early.Opening.At) {
		t.Errorf("%+v", r)
	}
	r.add("late", "a", 2, addition(7, made.Add(time.Second)), made)
	if r.Durables[main].Arrived != 3 || r.Durables[retry] != (Durable{Start{made.Add(time.Second), 7}, Deliveries{Arrived: 1}}) {
		t.Errorf("%+v", r.Durables)
	}
}

// An instance counts as killed when nobody of its name runs, when another of its name wrote later, or when it says nothing for long.
func TestCompare_killed(t *testing.T) {
	made, now := time.Now().Add(-time.Hour).UTC(), time.Now()
	main := Name("ORDERS", "billing")
	s := Server{Durables: map[string]Counted{main: {Created: made}}}
	everybody := func(string) bool { return true }
	for name, c := range map[string]struct {
		instances map[string]Instance
		lives     func(string) bool
		want      uint64
	}{
		"both run":                {map[string]Instance{"1": {Name: "a", At: now, Hand: 2}, "2": {Name: "b", At: now, Hand: 3}}, everybody, 0},
		"it is not known":         {map[string]Instance{"1": {Name: "a", At: now, Hand: 2}}, nil, 0},
		"one runs no more":        {map[string]Instance{"1": {Name: "a", At: now, Hand: 2}, "2": {Name: "b", At: now, Hand: 3}}, func(n string) bool { return n == "a" }, 3},
		"one began anew":          {map[string]Instance{"1": {Name: "a", At: now.Add(-time.Second), Hand: 2}, "2": {Name: "a", At: now, Hand: 3}}, everybody, 2},
		"one has been quiet":      {map[string]Instance{"1": {Name: "a", At: now.Add(-quietAfter - time.Second), Hand: 2}}, everybody, 2},
		"it had nothing, in sum":  {map[string]Instance{"1": {Name: "a", At: now.Add(-time.Hour), Hand: -1}}, everybody, 0},
		"one was forgotten, too":  {map[string]Instance{}, everybody, 0},
		"a later one of the rest": {map[string]Instance{"1": {Name: "a", At: now, Hand: 2}, "2": {Name: "b", At: now.Add(time.Second), Hand: 3}}, everybody, 0},
	} {
		r := &Record{Stream: "ORDERS", Durable: "billing", Durables: map[string]Durable{main: {Start: Start{Created: made}}}, Instances: c.instances, Killed: 4}
		if b := Compare(r, s, s, c.lives); b.Killed != c.want+4 {
			t.Errorf("%s: %d had in hand, want %d", name, b.Killed, c.want+4)
		}
	}
}

// A number moved, a durable came or went: what the server says is not the same any more.
func TestServer_same(t *testing.T) {
	s := Server{Durables: map[string]Counted{"a": {Delivered: 1}}, Parked: 2}
	for name, c := range map[string]struct {
		o    Server
		want bool
	}{
		"it is":                  {Server{Durables: map[string]Counted{"a": {Delivered: 1}}, Parked: 2}, true},
		"a delivery":             {Server{Durables: map[string]Counted{"a": {Delivered: 2}}, Parked: 2}, false},
		"one parked":             {Server{Durables: map[string]Counted{"a": {Delivered: 1}}, Parked: 3}, false},
		"another durable":        {Server{Durables: map[string]Counted{"b": {Delivered: 1}}, Parked: 2}, false},
		"a durable more":         {Server{Durables: map[string]Counted{"a": {Delivered: 1}, "b": {}}, Parked: 2}, false},
		"a durable is not there": {Server{Parked: 2}, false},
	} {
		if s.same(c.o) != c.want {
			t.Errorf("%s: %v", name, !c.want)
		}
	}
}

// Dead letters that are gone are told of beside any verdict; only what nothing explains is unexplained.
func TestBalance_deadLettersBesideADifference(t *testing.T) {
	b := Balance{Difference: 5, Bound: 2, Total: Counts{Dead: 3}}
	b.judge()
	if b.SetDeadLetters(DeadLetters{Stored: 3, AtLeast: 1, AtMost: 1}, "1"); b.Verdict != Unexplained || b.Unexplained() != 3 ||
		!strings.Contains(b.Text, "no outcome was counted for 5 messages") || !strings.HasSuffix(b.Text, "who did is not known") || b.DeadLetters.AtLeast != 1 {
		t.Errorf("%+v", b)
	}
	if b := (Balance{Difference: 5, Verdict: Explained}); b.Unexplained() != 0 {
		t.Errorf("%+v: %d", b, b.Unexplained())
	}
}

// The bucket is made once, and is found by whoever comes later. Streams may have names that its keys may not.
func TestOpen(t *testing.T) {
	nc := natstest.Start(t).Conn(t)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Attach(t.Context(), js, "relay"); !errors.Is(err, jetstream.ErrBucketNotFound) {
		t.Errorf("before any instance ran: %v", err)
	}
	book, err := Open(t.Context(), js, "relay", 0)
	if err != nil {
		t.Fatal(err)
	}
	for name, of := range map[string]func() (*Book, error){
		"opened":   func() (*Book, error) { return Open(t.Context(), js, "relay", 0) },
		"attached": func() (*Book, error) { return Attach(t.Context(), js, "relay") },
	} {
		if b, err := of(); err != nil || b.KV().Bucket() != "RELAY_LEDGER" {
			t.Errorf("%s: %v", name, err)
		}
	}
	durables := map[string]string{"ORDERS": "billing", "A stream, of people": "x", "Another one": "x", "ORDERS-2": "billing"}
	for stream, durable := range durables {
		a := &Addition{Routes: map[string]Counts{}, Durables: map[string]Durable{}}
		if err := NewWriter(stream, durable, "one", "a").Add(t.Context(), book, a); err != nil {
			t.Fatal(err)
		}
		if _, err := book.KV().PutString(t.Context(), CatchUpKey(stream, durable), "no record"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := book.KV().PutString(t.Context(), "ORDERS.broken", "{"); err != nil {
		t.Fatal(err)
	}
	list, bad, err := book.List(t.Context())
	var got []string
	for _, r := range list {
		got = append(got, r.Stream+"/"+r.Durable)
	}
	if slices.Sort(got); err != nil || fmt.Sprint(got) != "[A stream, of people/x Another one/x ORDERS-2/billing ORDERS/billing]" {
		t.Errorf("%v, %v", got, err)
	}
	if len(bad) != 1 || !strings.Contains(fmt.Sprint(bad["ORDERS.broken"]), "not a ledger") {
		t.Errorf("%v", bad)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Open(ended, js, "other", 1); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that ended: %v", err)
	}
	if _, _, err := book.List(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that ended: %v", err)
	}
}

// A record of a newer version, and one that nobody can read, are left alone.
func TestWriter_leavesStrangersRecordsAlone(t *testing.T) {
	book := testBook(t)
	for _, text := range []string{`{"format": 99}`, "{"} {
		if _, err := book.KV().PutString(t.Context(), "ORDERS.billing", text); err != nil {
			t.Fatal(err)
		}
		w, a := NewWriter("ORDERS", "billing", "one", "a"), &Addition{}
		if err := w.Finish(t.Context(), book, a); err == nil || w.Pending() != a {
			t.Errorf("%s: %v, %v is pending", text, err, w.Pending())
		}
		if e, err := book.KV().Get(t.Context(), "ORDERS.billing"); err != nil || string(e.Value()) != text {
			t.Errorf("%s: %v, %v", text, e, err)
		}
	}
}

// Somebody writes first, again and again: whoever adds gives up when its context ends, and the addition is pending.
func TestWriter_conflictsUntilTheContextEnds(t *testing.T) {
	real := testBook(t)
	kv := &faultyKV{KeyValue: real.kv}
	book := &Book{real.nc, kv}
	ctx, cancel := context.WithCancel(t.Context())
	w, a := NewWriter("ORDERS", "billing", "one", "a"), &Addition{Routes: map[string]Counts{"r": {Done: 1}}}
	tries := 0
	var first func()
	first = func() {
		kv.before = nil
		other := &Addition{Routes: map[string]Counts{"r": {Done: 10}}}
		if err := NewWriter("ORDERS", "billing", fmt.Sprint("other ", tries), "b").Add(t.Context(), real, other); err != nil {
			t.Error(err)
		}
		if tries++; tries == 5 {
			cancel()
		}
		kv.before = first
	}
	kv.before = first
	// The client does not send what its context does not wait for: the fifth ends by the context, whichever says so.
	if err := w.Add(ctx, book, a); !errors.Is(err, context.Canceled) || w.Pending() != a || tries != 5 {
		t.Errorf("%v after %d tries, %v is pending", err, tries, w.Pending())
	}
	kv.before = nil
	if err := w.Add(t.Context(), book, a); err != nil {
		t.Fatal(err)
	}
	if r, err := book.Get(t.Context(), "ORDERS", "billing"); err != nil || r.Total().Done != 51 {
		t.Errorf("%+v, %v", r, err)
	}
}

// What answers may be no server that relay knows.
func TestMatching_answers(t *testing.T) {
	nc := natstest.Start(t).Conn(t)
	answers := make(chan *nats.Msg, 1)
	_, err := nc.Subscribe("api.DIRECT.GET.S", func(m *nats.Msg) { _ = m.RespondMsg(<-answers) })
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		header nats.Header
		n      uint64
		err    string
	}{
		"the last":     {nats.Header{"Nats-Num-Pending": {"0"}, "X": {"y"}}, 1, ""},
		"one of three": {nats.Header{"Nats-Num-Pending": {"2"}, "X": {"y"}}, 3, ""},
		"none":         {nats.Header{"Status": {"404"}, "Description": {"No Results"}}, 0, ""},
		"refused":      {nats.Header{"Status": {"408"}, "Description": {"Bad Request"}}, 0, "408 Bad Request"},
		"no reason":    {nats.Header{"Status": {"500"}}, 0, "500"},
		"no count":     {nats.Header{"X": {"y"}}, 0, "stream S: no count in the answer"},
	} {
		answers <- &nats.Msg{Header: c.header}
		n, header, err := Matching(t.Context(), nc, "api.", "S", "x")
		if err != nil {
			got := err.Error()
			if got != c.err {
				t.Errorf("%s: %q, want %q", name, got, c.err)
			}
		} else if c.err != "" || n != c.n || n > 0 && header.Get("X") != "y" {
			t.Errorf("%s: %d, %v", name, n, header)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := Matching(ended, nc, "api.", "S", "x"); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
