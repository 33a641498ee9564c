package archive

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/relaymq/relay/internal/natstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, natstest.Leaks()...) }

var someRecord = rapid.Custom(func(t *rapid.T) Record {
	r := Record{
		Route: rapid.SampledFrom([]string{"billing", "b", ""}).Draw(t, "route"), Durable: rapid.SampledFrom([]string{"billing", "d"}).Draw(t, "durable"),
		Sequence: rapid.Uint64().Draw(t, "sequence"), Published: time.Unix(0, rapid.Int64().Draw(t, "published")).UTC(),
		Ended: time.UnixMilli(rapid.Int64().Draw(t, "ended")).UTC(), Outcome: Outcome(rapid.IntRange(1, int(outcomes)-1).Draw(t, "outcome")),
		Reason:   rapid.SampledFrom([]string{"", "dead", "exhausted"}).Draw(t, "reason"),
		Attempts: rapid.IntRange(0, 1<<31-1).Draw(t, "attempts"), Replay: rapid.IntRange(0, 1<<31-1).Draw(t, "replay"),
		Cut: rapid.Bool().Draw(t, "cut"),
	}
	if b := rapid.SliceOfN(rapid.Byte(), 0, 50).Draw(t, "result"); len(b) > 0 {
		r.Result = b
	}
	return r
})

// What is written is read again, whatever it is, also with the memory of a batch before.
func TestBatch_roundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var b batch
		for range 2 {
			want := rapid.SliceOfN(someRecord, 1, 20).Draw(t, "records")
			b.reset("ORDERS")
			low, high := want[0].Sequence, want[0].Sequence
			for _, r := range want {
				b.add(r)
				low, high = min(low, r.Sequence), max(high, r.Sequence)
			}
			got := all(t, b.data)
			if !reflect.DeepEqual(got, want) {
				t.Fatalf("got %+v, want %+v", got, want)
			}
			if b.records != uint64(len(want)) || b.lowest != low || b.highest != high {
				t.Fatalf("%d records from %d to %d", b.records, b.lowest, b.highest)
			}
		}
	})
}

func all(t interface{ Fatal(...any) }, data []byte) (list []Record) {
	if err := decode(data, func(r Record) bool { list = append(list, r); return true }); err != nil {
		t.Fatal(err)
	}
	return list
}

// Whatever is in a batch, reading it ends, and what was read can be written and read again.
func FuzzDecode(f *testing.F) {
	var b batch
	b.reset("ORDERS")
	b.add(Record{Route: "billing", Durable: "billing", Sequence: 7, Published: time.Unix(1, 2), Ended: time.Unix(2, 0), Outcome: Done, Attempts: 1})
	b.add(Record{Route: "billing", Durable: "d", Sequence: 5, Published: time.Unix(0, 2), Ended: time.Unix(3, 0), Outcome: Dead, Reason: "dead", Replay: 2})
	b.add(Record{Route: "billing", Durable: "billing", Sequence: 9, Outcome: Done, Attempts: 3, Result: []byte("{}"), Cut: true})
	f.Add(b.data)
	f.Add(b.data[:len(b.data)-1])
	f.Add([]byte{})
	f.Add([]byte{2})
	f.Add([]byte{version, 1, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Add([]byte{version, byte(Done), 1})
	f.Fuzz(func(t *testing.T, data []byte) {
		var list []Record
		if decode(data, func(r Record) bool { list = append(list, r); return true }) != nil {
			return
		}
		var b batch
		b.reset("ORDERS")
		for _, r := range list {
			b.add(r)
		}
		for i, r := range all(t, b.data) {
			if want := list[i]; r.Sequence != want.Sequence || !r.Published.Equal(want.Published) || r.Route != want.Route || r.Outcome != want.Outcome || !bytes.Equal(r.Result, want.Result) {
				t.Fatalf("%+v, want %+v", r, want)
			}
		}
	})
}

// written is a server that stores what it gets, or does not answer.
type written struct {
	down    atomic.Bool
	records atomic.Uint64
	batches atomic.Uint64
}

func (s *written) publish(ctx context.Context, m *nats.Msg) error {
	if s.down.Load() {
		<-ctx.Done()
		return ctx.Err()
	}
	s.batches.Add(1)
	return decode(m.Data, func(Record) bool { s.records.Add(1); return true })
}

func writer(s *written) *Writer {
	return New(Config{
		Service: "relay", Instance: "a", Publish: s.publish, MaxPayload: func() int64 { return 1 << 20 }, Logger: slog.New(slog.DiscardHandler),
	})
}

func record(n int) Record {
	return Record{Route: "billing", Durable: "billing", Sequence: uint64(n), Published: time.Unix(0, int64(n)*1000), Ended: time.Unix(0, int64(n)*1000), Outcome: Done, Attempts: 1}
}

// A server that does not answer costs records and no time; when it is back, what was kept is written, and the rest was counted.
func TestWriter_aServerThatIsAwaySlowsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := new(written)
		s.down.Store(true)
		w := writer(s)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); w.Run(ctx) }()
		result := make([]byte, MaxResult)
		began, n := time.Now(), 0
		for ; w.Dropped() < 100; n++ {
			r := record(n)
			r.Result = result
			w.Add("ORDERS", r)
			if n > 10_000 {
				t.Fatal("nothing is dropped")
			}
		}
		if took := time.Since(began); took > 0 {
			t.Errorf("it took %v", took)
		}
		held := func() int {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.held
		}
		if h := held(); h > maxHeld+MaxResult+100 {
			t.Errorf("%d bytes are held", h)
		}
		time.Sleep(time.Hour)
		if w.Stored() > 0 || w.Dropped() != 100 {
			t.Errorf("%d stored, %d dropped", w.Stored(), w.Dropped())
		}
		s.down.Store(false)
		time.Sleep(time.Minute)
		if w.Stored()+w.Dropped() != uint64(n) || w.Stored() != s.records.Load() || held() != 0 {
			t.Errorf("%d stored of %d, %d dropped of %d, %d bytes are held", w.Stored(), s.records.Load(), w.Dropped(), n, held())
		}
		w.Add("ORDERS", record(n))
		time.Sleep(oldBatch)
		synctest.Wait()
		if w.Stored()+w.Dropped() != uint64(n+1) {
			t.Error("it is not written half a second later")
		}
		cancel()
		<-done
	})
}

// The end writes what is left, and waits for no server that is away.
func TestWriter_flush(t *testing.T) {
	for _, down := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := new(written)
			s.down.Store(down)
			w := writer(s)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() { defer close(done); w.Run(ctx) }()
			for i := range 10 {
				w.Add(fmt.Sprint("S", i%3), record(i))
			}
			end, stop := context.WithTimeout(t.Context(), 2*time.Second)
			began := time.Now()
			w.Flush(end)
			took := time.Since(began)
			stop()
			w.Add("S1", record(11))
			cancel()
			<-done
			if !down && (took > 0 || s.records.Load() != 10 || s.batches.Load() != 3 || w.Dropped() != 1) || down && (took > 2*time.Second || w.Dropped() != 11) {
				t.Errorf("down %v: %v, %d records in %d batches, %d dropped", down, took, s.records.Load(), s.batches.Load(), w.Dropped())
			}
		})
	}
}

// A record costs no memory of its own.
func TestWriter_allocatesNothingForARecord(t *testing.T) {
	w := writer(new(written))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); w.Run(ctx) }()
	n := 0
	each := func() {
		for range 10_000 {
			n++
			w.Add("ORDERS", record(n))
		}
	}
	for range 20 {
		each()
	}
	if allocs := testing.AllocsPerRun(20, each); allocs > 200 { // of the batches that were sent meanwhile
		t.Errorf("%v allocations for 10,000 records", allocs)
	}
	cancel()
	<-done
}

// On a server: what was written is found by its sequence, and other batches are not opened.
func TestFind(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	if _, err := Find(t.Context(), js, "relay", "ORDERS", 1, time.Time{}); !errors.Is(err, jetstream.ErrStreamNotFound) {
		t.Errorf("without a stream: %v", err)
	}
	s, err := js.CreateStream(t.Context(), Stream("relay", 1, time.Hour, 1<<20, 0))
	if err != nil {
		t.Fatal(err)
	}
	if list, err := Find(t.Context(), js, "relay", "ORDERS", 1, time.Time{}); err != nil || len(list) > 0 {
		t.Errorf("empty: %v, %v", list, err)
	}
	w := New(Config{
		Service: "relay", Instance: "one", MaxPayload: js.Conn().MaxPayload, Logger: slog.New(slog.DiscardHandler),
		Publish: func(ctx context.Context, m *nats.Msg) error { _, err := js.PublishMsg(ctx, m); return err },
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); w.Run(ctx) }()
	const n = 100_000
	for i := range n {
		w.Add("ORDERS", record(i+1))
		if i%1000 == 0 {
			w.Add("OTHERS", record(i+1))
		}
	}
	again := record(42)
	again.Outcome, again.Reason, again.Ended = Dead, "dead", again.Ended.Add(time.Second)
	w.Add("ORDERS", again)
	w.Flush(t.Context())
	cancel()
	<-done
	if w.Stored() != n+n/1000+1 || w.Dropped() > 0 {
		t.Fatalf("%d stored, %d dropped", w.Stored(), w.Dropped())
	}
	info, err := s.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if st := info.State; st.Bytes > n*12 || st.Msgs < 3 || info.Config.Compression != jetstream.S2Compression {
		t.Errorf("%d records are %d bytes in %d messages", n, st.Bytes, st.Msgs)
	}
	list, err := Find(t.Context(), js, "relay", "ORDERS", 42, time.Now().Add(-time.Second))
	if err != nil || len(list) != 2 || list[0].Outcome != Done || list[1].Outcome != Dead || list[1].Reason != "dead" || list[1].Instance != "one" ||
		!list[0].Published.Equal(record(42).Published) {
		t.Errorf("%+v, %v", list, err)
	}
	for seq, want := range map[uint64]int{1: 1, n: 1, n + 1: 0} {
		if list, err := Find(t.Context(), js, "relay", "ORDERS", seq, time.Time{}); err != nil || len(list) != want {
			t.Errorf("%d: %+v, %v", seq, list, err)
		}
	}
	if list, err := Find(t.Context(), js, "relay", "OTHERS", 2, time.Time{}); err != nil || len(list) != 0 {
		t.Errorf("of another stream: %+v, %v", list, err)
	}
	// What is no batch is left out.
	if _, err := js.PublishMsg(t.Context(), &nats.Msg{Subject: "relay.archive.ORDERS", Data: []byte("x"), Header: nats.Header{headerFirst: {"1"}, headerLast: {"9"}}}); err != nil {
		t.Fatal(err)
	}
	if list, err := Find(t.Context(), js, "relay", "ORDERS", 1, time.Time{}); err != nil || len(list) != 1 {
		t.Errorf("%+v, %v", list, err)
	}
}

// What was written last is found first, with a bound on what is read for it.
func TestLatest(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	latest := func(route string, most int) ([]Found, time.Time) {
		t.Helper()
		list, back, err := Latest(t.Context(), js, "relay", "ORDERS", route, most)
		if err != nil {
			t.Fatal(err)
		}
		return list, back
	}
	if _, _, err := Latest(t.Context(), js, "relay", "ORDERS", "billing", 1); !errors.Is(err, jetstream.ErrStreamNotFound) {
		t.Errorf("without a stream: %v", err)
	}
	s, err := js.CreateStream(t.Context(), Stream("relay", 1, time.Hour, 1<<20, 0))
	if err != nil {
		t.Fatal(err)
	}
	if list, back := latest("billing", 1); len(list) > 0 || !back.IsZero() {
		t.Errorf("empty: %v, %v", list, back)
	}
	put := func(stream string, records ...Record) {
		t.Helper()
		var b batch
		b.reset(stream)
		for _, r := range records {
			b.add(r)
		}
		m := &nats.Msg{Subject: Prefix("relay") + stream, Data: b.data, Header: nats.Header{headerInstance: {"one"}}}
		if _, err := js.PublishMsg(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	of := func(route string, n int) Record {
		r := record(n * 1000) // a millisecond each
		r.Route = route
		return r
	}
	sequences := func(list []Found) (got []int) {
		for _, f := range list {
			got = append(got, int(f.Sequence/1000))
		}
		return got
	}
	var many []Record
	for i := range 100 {
		many = append(many, of("billing", i+1))
	}
	put("ORDERS", many...)
	put("ORDERS", of("billing", 101), of("mail", 102))
	put("OTHERS", of("billing", 103))
	put("ORDERS", of("mail", 104))
	if _, err := js.Publish(t.Context(), Prefix("relay")+"ORDERS", []byte("no batch")); err != nil {
		t.Fatal(err)
	}
	list, back := latest("billing", 3)
	if got := sequences(list); !slices.Equal(got, []int{101, 100, 99}) || !back.IsZero() || list[0].Instance != "one" {
		t.Errorf("%v, back to %v", got, back)
	}
	if got, back := latest("mail", 3); !slices.Equal(sequences(got), []int{104, 102}) || !back.IsZero() {
		t.Errorf("all that there are: %v, back to %v", sequences(got), back)
	}
	if err := s.DeleteMsg(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	if got, _ := latest("billing", 101); len(got) != 100 || got[0].Sequence != 100_000 {
		t.Errorf("after a gap: %v", sequences(got))
	}
	for range latestBatches {
		put("ORDERS", of("mail", 200))
	}
	if got, back := latest("billing", 3); len(got) > 0 || time.Since(back) > time.Minute || back.IsZero() {
		t.Errorf("beyond the bound: %v, back to %v", sequences(got), back)
	}
}

func BenchmarkWriter_Add(b *testing.B) {
	w := writer(new(written))
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan struct{})
	go func() { defer close(done); w.Run(ctx) }()
	b.ReportAllocs()
	for i := range b.N {
		w.Add("ORDERS", record(i))
	}
	cancel()
	<-done
}
