package partition

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/natstest"
)

// withA is a server with stream A, which has so many messages.
func withA(t *testing.T, messages int) jetstream.JetStream {
	t.Helper()
	js := natstest.Start(t).JetStream(t)
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "A", Subjects: []string{"a.*"}}); err != nil {
		t.Fatal(err)
	}
	publish(t, js, messages)
	return js
}

func publish(t *testing.T, js jetstream.JetStream, messages int) {
	t.Helper()
	for i := range messages {
		if _, err := js.Publish(t.Context(), fmt.Sprintf("a.%d", i), nil); err != nil {
			t.Fatal(err)
		}
	}
}

// generation divides stream A in number+1 partitions.
func generation(number int) Generation {
	return Generation{"relay", "orders", number, Layout{Count: number + 1, Key: "{2}", Subjects: []string{"a.*"}, Stream: "A", Durable: "orders"}}
}

func mustMake(t *testing.T, js jetstream.JetStream, g Generation, start Start) *Stream {
	t.Helper()
	s, err := g.Make(t.Context(), js, start, 1)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func find(t *testing.T, js jetstream.JetStream) []*Stream {
	t.Helper()
	list, err := Find(t.Context(), js, "relay", "orders")
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func numbers(list []*Stream) (n []int) {
	for _, s := range list {
		n = append(n, s.Number)
	}
	return n
}

// origins waits for so many copies, and returns the sequences of what they are copies of.
func origins(t *testing.T, js jetstream.JetStream, g Generation, copies int) (list []uint64) {
	t.Helper()
	c, err := js.CreateConsumer(t.Context(), g.Name(), jetstream.ConsumerConfig{FilterSubject: g.Copied(), AckPolicy: jetstream.AckNonePolicy})
	if err != nil {
		t.Fatal(err)
	}
	batch, err := c.Fetch(copies, jetstream.FetchMaxWait(20*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	for m := range batch.Messages() {
		origin, _ := Source(m.Headers().Get(SourceHeader))
		list = append(list, origin)
	}
	if len(list) != copies {
		t.Fatalf("%s has copies of %v, not %d", g.Name(), list, copies)
	}
	return list
}

// deliver has the consumers of all partitions deliver what there is, without settling it.
func deliver(t *testing.T, js jetstream.JetStream, g Generation) (list []jetstream.Msg) {
	t.Helper()
	for n := range g.Count {
		c, err := js.CreateConsumer(t.Context(), g.Name(),
			jetstream.ConsumerConfig{Durable: g.DurableOf(n), FilterSubject: g.Part(n), AckPolicy: jetstream.AckExplicitPolicy})
		if err != nil {
			t.Fatal(err)
		}
		batch, err := c.FetchNoWait(100)
		if err != nil {
			t.Fatal(err)
		}
		for m := range batch.Messages() {
			list = append(list, m)
		}
	}
	return list
}

func settle(t *testing.T, list []jetstream.Msg) {
	t.Helper()
	for _, m := range list {
		if err := m.DoubleAck(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// The stream of a generation says whose it is, and how it divides what it copies from where: another instance reads all of that back.
func TestGeneration_makeSaysWhatItIs(t *testing.T) {
	t.Parallel()
	js := withA(t, 5)
	a, err := js.Stream(t.Context(), "A")
	if err != nil {
		t.Fatal(err)
	}
	m, err := a.GetMsg(t.Context(), 3)
	if err != nil {
		t.Fatal(err)
	}
	for i, start := range []Start{{Sequence: 3}, {Time: m.Time}} {
		g := generation(i + 1)
		mustMake(t, js, g, start)
		list := find(t, js)
		s := list[len(list)-1]
		if s.Number != g.Number || s.Service != g.Service || s.Route != g.Route || !s.Layout.Equal(g.Layout) {
			t.Errorf("made %+v, found %+v", g, s.Generation)
		}
		if s.Start.Sequence != start.Sequence || !s.Start.Time.Equal(start.Time) || !s.Sources() {
			t.Errorf("made to begin %s, found %s, which copies: %v", start, s.Start, s.Sources())
		}
		if got := origins(t, js, g, 3); !slices.Equal(got, []uint64{3, 4, 5}) {
			t.Errorf("that which begins %s has copies of %v", start, got)
		}
		c := s.Info.Config
		if !Is(c) || c.Storage != jetstream.FileStorage || c.Replicas != 1 || !c.AllowMsgTTL || c.Duplicates != 0 {
			t.Errorf("its config is %+v", c)
		}
		if !strings.Contains(c.Description, "route orders from stream A") {
			t.Errorf("its description is %q", c.Description)
		}
	}
	if Is(a.CachedInfo().Config) {
		t.Error("the user's stream is taken for one of relay's")
	}
}

// A generation without a start copies nothing, but takes what relay puts there, of whatever message id.
func TestGeneration_makeWithoutStart(t *testing.T) {
	t.Parallel()
	js := withA(t, 3)
	g, other := generation(2), generation(1)
	s := mustMake(t, js, g, Start{})
	other.Route = "bills"
	mustMake(t, js, other, Start{Sequence: 1})
	origins(t, js, other, 3) // the server copies
	if s.Sources() {
		t.Error("it says that it copies")
	}
	for range 2 {
		if _, err := js.Publish(t.Context(), g.Moved("a.1"), nil, jetstream.WithMsgID("same")); err != nil {
			t.Fatal(err)
		}
	}
	if s = find(t, js)[0]; s.Info.State.Msgs != 2 {
		t.Errorf("it has %d messages, not the two that were put there", s.Info.State.Msgs)
	}
	if _, _, known := s.Behind(); known {
		t.Error("what does not copy says how far behind it is")
	}
}

// What another instance has made is taken as it is, but for one that divides in another way, or that relay does not own.
func TestGeneration_madeAlready(t *testing.T) {
	t.Parallel()
	js := withA(t, 0)
	g := generation(1)
	mustMake(t, js, g, Start{Sequence: 7})
	if s := mustMake(t, js, g, Start{Sequence: 7}); s.Start.Sequence != 7 {
		t.Errorf("the one that was there begins %s", s.Start)
	}
	differs := g
	differs.Count = 5
	if _, err := differs.Make(t.Context(), js, Start{Sequence: 7}, 1); !errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
		t.Errorf("another layout: %v", err)
	}
	if s := find(t, js)[0]; s.Count != g.Count {
		t.Errorf("there are %d partitions now", s.Count)
	}
	foreign := generation(2)
	c := foreign.streamConfig(Start{}, foreign.noSource(), 1)
	c.Metadata = nil
	if _, err := js.CreateStream(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if _, err := foreign.Make(t.Context(), js, Start{}, 1); err == nil {
		t.Error("the stream of somebody else was taken")
	}
	if there, err := js.Stream(t.Context(), foreign.Name()); err != nil || Is(there.CachedInfo().Config) {
		t.Errorf("the stream of somebody else was changed: %v", err)
	}
}

// Find returns the generations of one route, oldest first, and no stream that only looks like one.
func TestFind(t *testing.T) {
	t.Parallel()
	js := withA(t, 0)
	for _, number := range []int{10, 2, 9} {
		mustMake(t, js, generation(number), Start{})
	}
	other := generation(3)
	other.Route = "orders-2"
	mustMake(t, js, other, Start{})
	renamed := generation(4).streamConfig(Start{}, generation(4).noSource(), 1)
	renamed.Name = "COPY"
	unmarked := generation(5).streamConfig(Start{}, generation(5).noSource(), 1)
	unmarked.Metadata = nil
	for _, c := range []jetstream.StreamConfig{renamed, unmarked} {
		if _, err := js.CreateStream(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	if got := numbers(find(t, js)); !slices.Equal(got, []int{2, 9, 10}) {
		t.Errorf("found %v", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if list, err := Find(ctx, js, "relay", "orders"); err == nil {
		t.Errorf("without an answer: %v, as if there were no others", numbers(list))
	}
}

// How far behind a stream is, is known once its server has found what it copies.
func TestStream_behind(t *testing.T) {
	t.Parallel()
	js := withA(t, 4)
	g, nowhere := generation(1), generation(2)
	nowhere.Stream = "B"
	mustMake(t, js, g, Start{Sequence: 1})
	mustMake(t, js, nowhere, Start{Sequence: 1})
	origins(t, js, g, 4)
	list := find(t, js)
	if n, silent, known := list[0].Behind(); n != 0 || silent < 0 || silent > time.Minute || !known {
		t.Errorf("all is copied: %d messages, silent for %s, %v", n, silent, known)
	}
	if n, _, known := list[1].Behind(); known {
		t.Errorf("of a stream that does not exist: %d messages, known", n)
	}
	list[0].Info.Sources[0].Lag = 17
	if n, _, _ := list[0].Behind(); n != 17 {
		t.Errorf("%d messages, not those that the server says", n)
	}
}

// What is cut takes nothing more, from nobody, and is still known by all that it was made with.
func TestStream_cut(t *testing.T) {
	t.Parallel()
	js := withA(t, 2)
	g := generation(1)
	s := mustMake(t, js, g, Start{Sequence: 1})
	origins(t, js, g, 2)
	slow := find(t, js)[0] // another instance, which looked before it was cut
	for _, s := range []*Stream{s, s, slow} {
		if err := s.Cut(t.Context(), js); err != nil {
			t.Fatal(err)
		}
		if s.Sources() || !s.Info.Config.Sealed {
			t.Error("what this instance knows of it is not up to date")
		}
	}
	if _, err := js.Publish(t.Context(), g.Moved("a.1"), nil); err == nil {
		t.Error("it took a message")
	}
	found := find(t, js)[0]
	if !found.Info.Config.Sealed || found.Sources() || found.Start.Sequence != 1 || found.Info.State.Msgs != 2+1 || // and the mark
		!found.Layout.Equal(g.Layout) {
		t.Errorf("found %+v", found.Info)
	}
	gone := mustMake(t, js, generation(2), Start{})
	if err := js.DeleteStream(t.Context(), gone.Name()); err != nil {
		t.Fatal(err)
	}
	if err := gone.Cut(t.Context(), js); !errors.Is(err, jetstream.ErrStreamNotFound) {
		t.Errorf("one that is gone: %v", err)
	}
}

// While others put messages there, a stream of three servers is cut: nothing is stored behind the mark, whatever the servers still had to agree on when it
// was sealed. A message that was stored a moment later would have been taken for copied by the next generation, or have been deleted with its stream.
func TestStream_cut_regressionWhatWasOnItsWayIsStoredBeforeItSaysThatItIsSealed(t *testing.T) {
	t.Parallel()
	servers := natstest.Cluster(t, 3)
	js := servers[0].JetStream(t)
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "A", Subjects: []string{"a.*"}, Replicas: 3}); err != nil {
		t.Fatal(err)
	}
	g := generation(1)
	s, err := g.Make(t.Context(), js, Start{Sequence: 1}, 3)
	if err != nil {
		t.Fatal(err)
	}
	var stored atomic.Int64
	var putting sync.WaitGroup
	for i := range 8 {
		from := servers[i%3].JetStream(t)
		putting.Go(func() {
			for n := 0; ; n++ {
				if err := g.Put(t.Context(), from, fmt.Sprintf("a.%d", n), nil, nil); err != nil {
					return
				}
				stored.Add(1)
			}
		})
	}
	natstest.Eventually(t, "200 messages are stored", func() bool { return stored.Load() >= 200 })
	if err := s.Cut(t.Context(), js); err != nil {
		t.Fatal(err)
	}
	last := s.Info.State.LastSeq
	putting.Wait()
	stream, err := js.Stream(t.Context(), s.Name())
	if err != nil {
		t.Fatal(err)
	}
	state := stream.CachedInfo().State
	m, err := stream.GetMsg(t.Context(), state.LastSeq)
	if err != nil || m.Subject != g.end() {
		t.Errorf("the last message is %v, %v", m, err)
	}
	if state.LastSeq != last || state.Msgs < uint64(stored.Load())+1 {
		t.Errorf("%d messages when it was cut, %d later; %d were acknowledged", last, state.LastSeq, stored.Load())
	}
}

// A generation is through when it can get nothing more and all of its partitions are settled, and not before.
func TestGeneration_through(t *testing.T) {
	t.Parallel()
	js := withA(t, 8)
	g := generation(1)
	through := func(what string, want bool) {
		t.Helper()
		if got, err := (&Ending{Generation: g}).Through(t.Context(), js); got != want || err != nil {
			t.Errorf("%s: %v, %v", what, got, err)
		}
	}
	through("it is gone", true)
	s := mustMake(t, js, g, Start{Sequence: 1})
	through("it is empty, but not cut", false)
	origins(t, js, g, 8)
	if err := s.Cut(t.Context(), js); err != nil {
		t.Fatal(err)
	}
	through("no partition has a consumer yet", false)
	open := deliver(t, js, g)
	if len(open) != 8 {
		t.Fatalf("%d messages were delivered", len(open))
	}
	through("nothing is settled", false)
	settle(t, open[:7])
	through("one message is not settled", false)
	settle(t, open[7:])
	through("all is settled", true)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got, err := (&Ending{Generation: g}).Through(ctx, js); got || err == nil {
		t.Errorf("without an answer: %v, %v", got, err)
	}
}

// A new generation copies nothing before all of the former ones is settled, and then goes on exactly where these ended. Only what nobody works on any more
// is deleted.
func TestTender_handsOver(t *testing.T) {
	t.Parallel()
	js := withA(t, 6)
	first, second, third := generation(1), generation(2), generation(3)
	tender := Tender{JS: js}
	tend := func(left int) {
		t.Helper()
		list := find(t, js)
		if err := tender.Delete(t.Context(), list); err != nil {
			t.Fatal(err)
		}
		if n, err := tender.Tend(t.Context(), list); n != left || err != nil {
			t.Fatalf("%d are left, not %d: %v", n, left, err)
		}
	}
	mustMake(t, js, first, Start{Sequence: 2})
	origins(t, js, first, 5)
	mustMake(t, js, second, Start{}) // it never comes to copy anything
	open := deliver(t, js, first)
	tend(1)
	mustMake(t, js, third, Start{})
	publish(t, js, 4)
	settle(t, open[:4])
	tend(1)
	list := find(t, js)
	if got := numbers(Running(list)); !slices.Equal(got, []int{1, 2, 3}) {
		t.Errorf("before it is handed over, %v run", got)
	}
	for _, s := range list {
		if s.Sources() || s.Info.Config.Sealed != (s.Number < 3) {
			t.Errorf("generation %d copies: %v, sealed: %v", s.Number, s.Sources(), s.Info.Config.Sealed)
		}
	}
	settle(t, open[4:])
	tend(0)
	if got := origins(t, js, third, 4); !slices.Equal(got, []uint64{7, 8, 9, 10}) {
		t.Errorf("the new one has copies of %v", got)
	}
	list = find(t, js)
	if got := numbers(list); !slices.Equal(got, []int{1, 2, 3}) {
		t.Fatalf("there are %v", got)
	}
	if got := numbers(Running(list)); !slices.Equal(got, []int{3}) {
		t.Errorf("after it was handed over, %v run", got)
	}
	if n := list[0].Info.State.Msgs; n != 5+1 { // and the mark
		t.Errorf("the first one has %d messages now", n)
	}
	if s := list[2].Start; s.Sequence != 7 {
		t.Errorf("the new one says that it begins %s", s)
	}
	if err := js.DeleteStream(t.Context(), first.Name()); err != nil { // another instance was here
		t.Fatal(err)
	}
	if err := tender.Delete(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	if got := numbers(find(t, js)); !slices.Equal(got, []int{3}) {
		t.Errorf("%v are left", got)
	}
}

// When no former generation copied anything, the new one begins where they would have.
func TestTender_handsOverWhereItWouldHaveBegun(t *testing.T) {
	t.Parallel()
	js := withA(t, 6)
	first := generation(1)
	mustMake(t, js, first, Start{Sequence: 7})
	mustMake(t, js, generation(2), Start{})
	list := find(t, js)
	if n, err := (&Tender{JS: js}).Tend(t.Context(), list); n != 0 || err != nil {
		t.Fatal(n, err)
	}
	if !list[1].Sources() || list[1].Start.Sequence != 7 {
		t.Errorf("what the instance knows: it copies: %v, %s", list[1].Sources(), list[1].Start)
	}
	publish(t, js, 2)
	if got := origins(t, js, generation(2), 2); !slices.Equal(got, []uint64{7, 8}) {
		t.Errorf("the new one has copies of %v", got)
	}
}

// As long as it is not known that the former ones are through, and where they ended, the new one does not begin, and the error says which stream it is.
func TestTender_doesNotHandOverUnknown(t *testing.T) {
	t.Parallel()
	t.Run("gone", func(t *testing.T) {
		t.Parallel()
		js := withA(t, 1)
		s := mustMake(t, js, generation(1), Start{Sequence: 1})
		mustMake(t, js, generation(2), Start{})
		if err := s.Cut(t.Context(), js); err != nil {
			t.Fatal(err)
		}
		list := find(t, js)
		if err := js.DeleteStream(t.Context(), s.Name()); err != nil {
			t.Fatal(err)
		}
		if n, err := (&Tender{JS: js}).Tend(t.Context(), list); n != 1 || !errors.Is(err, jetstream.ErrStreamNotFound) {
			t.Errorf("%d are left: %v", n, err)
		}
		if find(t, js)[0].Sources() {
			t.Error("the new one copies")
		}
	})
	t.Run("no origin", func(t *testing.T) {
		t.Parallel()
		js := withA(t, 0)
		g := generation(1)
		mustMake(t, js, g, Start{Sequence: 1})
		by := g.prefix() + "0." + copied + ".a.1"
		if _, err := js.PublishMsg(t.Context(), &nats.Msg{Subject: by}); err != nil { // by somebody else
			t.Fatal(err)
		}
		mustMake(t, js, generation(2), Start{})
		settle(t, deliver(t, js, g))
		_, err := (&Tender{JS: js}).Tend(t.Context(), find(t, js))
		if err == nil || !strings.Contains(err.Error(), "message 1 of stream RELAY_ORDERS_G1") {
			t.Errorf("error: %v", err)
		}
		if find(t, js)[1].Sources() {
			t.Error("the new one copies")
		}
	})
}

// Which generations run depends on the newest that has begun to copy.
func TestRunning(t *testing.T) {
	t.Parallel()
	begun := Start{Sequence: 1}
	for want, starts := range map[string][]Start{
		"[]": {}, "[0]": {begun}, "[0 1]": {begun, {}}, "[1]": {begun, begun}, "[1 2 3]": {begun, begun, {}, {}}, "[2]": {begun, {}, {Time: time.Now()}},
	} {
		var list []*Stream
		for n, s := range starts {
			list = append(list, &Stream{Generation: Generation{Number: n}, Start: s})
		}
		if got := fmt.Sprint(numbers(Running(list))); got != want {
			t.Errorf("%v: %s, not %s", starts, got, want)
		}
	}
}

// All that decides where a message goes makes layouts differ.
func TestLayout_equal(t *testing.T) {
	t.Parallel()
	l := Layout{Count: 2, Key: "{2}", Subjects: []string{"a.*", "b.*"}, Stream: "A", Durable: "orders"}
	same := l
	same.Subjects = slices.Clone(l.Subjects)
	if !l.Equal(same) {
		t.Error("the same is not equal")
	}
	for what, change := range map[string]func(*Layout){
		"count": func(l *Layout) { l.Count++ }, "key": func(l *Layout) { l.Key = "subject" }, "stream": func(l *Layout) { l.Stream = "B" },
		"durable": func(l *Layout) { l.Durable = "x" }, "subjects": func(l *Layout) { l.Subjects = l.Subjects[:1] },
	} {
		o := l
		if change(&o); l.Equal(o) {
			t.Errorf("another %s is equal", what)
		}
	}
}

func TestStart_string(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 1, 1, 30, 0, 0, time.FixedZone("", 3600))
	for want, s := range map[string]Start{"after the former generation": {}, "at sequence 9": {Sequence: 9}, "since 2026-03-01T00:30:00Z": {Time: at}} {
		if got := s.String(); got != want {
			t.Errorf("%+v: %q", s, got)
		}
	}
}

// The names of a partition say which one it is of which generation, so that those of two generations never meet.
func TestGeneration_names(t *testing.T) {
	t.Parallel()
	g := generation(12)
	if g.Name() != "RELAY_ORDERS_G12" || g.RouteOf(3) != "orders-g12-3" || g.DurableOf(3) != "orders-3" || g.Part(3) != "relay.part.orders.12.3.>" {
		t.Errorf("%s, %s, %s, %s", g.Name(), g.RouteOf(3), g.DurableOf(3), g.Part(3))
	}
}

// Where the server has copied nothing yet, nothing has to stay of what relay put there: all is removed once it is settled, and nothing before.
func TestTender_removesWhatWasMoved(t *testing.T) {
	t.Parallel()
	js := withA(t, 0)
	g := generation(1)
	mustMake(t, js, g, Start{Sequence: 1})
	for i := range 4 {
		if _, err := js.Publish(t.Context(), g.Moved(fmt.Sprintf("a.%d", i)), nil); err != nil {
			t.Fatal(err)
		}
	}
	tender := Tender{JS: js}
	tend := func(what string, left uint64) {
		t.Helper()
		if n, err := tender.Tend(t.Context(), find(t, js)); n != 0 || err != nil {
			t.Fatal(what, n, err)
		}
		if got := find(t, js)[0].Info.State.Msgs; got != left {
			t.Errorf("%s: %d messages, not %d", what, got, left)
		}
	}
	open := deliver(t, js, g)
	tend("nothing is settled", 4)
	settle(t, open[:3])
	tend("one is not settled", 4) // so few stay until all are
	settle(t, open[3:])
	tend("all is settled", 0)
}

// A tender that gets no answer says so: it takes nothing for removed.
func TestTender_saysThatItFailed(t *testing.T) {
	t.Parallel()
	js := withA(t, 3)
	mustMake(t, js, generation(1), Start{Sequence: 1})
	mustMake(t, js, generation(2), Start{Sequence: 1})
	origins(t, js, generation(2), 3)
	list, tender := find(t, js), Tender{JS: js}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := tender.Delete(ctx, list); !errors.Is(err, context.Canceled) {
		t.Errorf("deleted: %v", err)
	}
	if _, err := tender.Tend(ctx, list); !errors.Is(err, context.Canceled) {
		t.Errorf("removed what is settled: %v", err)
	}
	if got := numbers(find(t, js)); !slices.Equal(got, []int{1, 2}) {
		t.Errorf("there are %v", got)
	}
}
