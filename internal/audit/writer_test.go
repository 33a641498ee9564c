package audit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"pgregory.net/rapid"

	"github.com/relaymq/relay/internal/natstest"
)

// What may become of a write.
const (
	answered   = "answered"
	unanswered = "unanswered" // it is made, but its answer is lost
	lost       = "lost"       // it does not reach the server
	late       = "late"       // no answer comes in time, and the server makes it later
)

var errNoAnswer = errors.New("no answer")

// faultyKV is a bucket of a real server, at the end of a bad line.
type faultyKV struct {
	jetstream.KeyValue
	next   []string // what becomes of the next writes; none left: they are answered
	before func()   // called once, before the next write; nil: nothing
	late   []func() // writes that are on their way still
}

func (f *faultyKV) write(send func() (uint64, error)) (uint64, error) {
	if do := f.before; do != nil {
		f.before = nil
		do()
	}
	fate := answered
	if len(f.next) > 0 {
		fate, f.next = f.next[0], f.next[1:]
	}
	switch fate {
	case unanswered:
		if _, err := send(); err != nil {
			return 0, err
		}
		return 0, errNoAnswer
	case lost:
		return 0, errNoAnswer
	case late:
		f.late = append(f.late, func() { _, _ = send() })
		return 0, errNoAnswer
	}
	return send()
}

func (f *faultyKV) Create(ctx context.Context, key string, value []byte, opts ...jetstream.KVCreateOpt) (uint64, error) {
	return f.write(func() (uint64, error) { return f.KeyValue.Create(ctx, key, value, opts...) })
}

func (f *faultyKV) Update(ctx context.Context, key string, value []byte, revision uint64) (uint64, error) {
	return f.write(func() (uint64, error) { return f.KeyValue.Update(ctx, key, value, revision) })
}

func (f *faultyKV) Put(ctx context.Context, key string, value []byte) (uint64, error) {
	return f.write(func() (uint64, error) { return f.KeyValue.Put(ctx, key, value) })
}

// arrive has all late writes come to the server.
func (f *faultyKV) arrive() {
	for _, send := range f.late {
		send()
	}
	f.late = nil
}

func testBook(t *testing.T) *Book {
	js, err := jetstream.New(natstest.Start(t).Conn(t))
	if err != nil {
		t.Fatal(err)
	}
	book, err := Open(t.Context(), js, "relay", 1)
	if err != nil {
		t.Fatal(err)
	}
	return book
}

// process is an instance that counts, and writes what it counted.
type process struct {
	w     *Writer
	fresh Counts // not in an addition yet
	last  bool   // it ended, and has to say so
}

type step struct {
	What  string
	Who   int
	N     uint64
	Fates []string
}

// Several processes add to one record over bad lines, in any order; they repeat what was not answered, end, and begin anew. Each count is in
// the record once, and of those that ended nobody is left.
func TestWriter_model(t *testing.T) {
	real := testBook(t)
	anyStep := rapid.Custom(func(rt *rapid.T) step {
		return step{
			What:  rapid.SampledFrom([]string{"count", "count", "write", "write", "write", "write between", "arrive", "end"}).Draw(rt, "what"),
			Who:   rapid.IntRange(0, 2).Draw(rt, "who"),
			N:     rapid.Uint64Range(1, 9).Draw(rt, "n"),
			Fates: rapid.SliceOfN(rapid.SampledFrom([]string{answered, unanswered, lost, late}), 0, 3).Draw(rt, "fates"),
		}
	})
	cases := 0
	rapid.Check(t, func(rt *rapid.T) {
		cases++
		writerModel(rt, real, fmt.Sprint("d", cases), rapid.SliceOfN(anyStep, 1, 40).Draw(rt, "steps"))
	})
}

func writerModel(rt *rapid.T, real *Book, durable string, steps []step) {
	const stream = "ORDERS"
	kv := &faultyKV{KeyValue: real.kv}
	book, made := &Book{real.nc, kv}, time.Now().UTC()
	want := map[string]Counts{} // by route: that of each process
	wantArrived := uint64(0)
	begun := 0
	begin := func() *process {
		begun++
		return &process{w: NewWriter(stream, durable, fmt.Sprint("process ", begun), "a")}
	}
	all := []*process{begin(), begin(), begin()}
	write := func(who int) error {
		p := all[who]
		route := fmt.Sprint("route ", who)
		if a := p.w.Pending(); a != nil { // as a tally does it
			if err := p.w.Add(rt.Context(), book, a); err != nil {
				return err
			}
		}
		a := &Addition{
			Routes:   map[string]Counts{route: p.fresh},
			Durables: map[string]Durable{Name(stream, durable): {Start{Created: made}, Deliveries{Arrived: p.fresh.Received}}},
			Opening:  Opening{At: made},
		}
		p.fresh = Counts{}
		add := p.w.Add
		if p.last {
			add = p.w.Finish
		}
		if err := add(rt.Context(), book, a); err != nil {
			return err
		}
		if p.last {
			all[who] = begin()
		}
		return nil
	}
	must := func(err error) {
		if err != nil && !errors.Is(err, errNoAnswer) {
			rt.Fatalf("write: %v", err)
		}
	}
	for _, s := range steps {
		p := all[s.Who]
		switch s.What {
		case "count":
			if p.last {
				continue
			}
			n := Counts{Received: s.N, Done: 1}
			p.fresh = p.fresh.Add(n)
			route := fmt.Sprint("route ", s.Who)
			want[route] = want[route].Add(n)
			wantArrived += s.N
		case "write between": // another one writes after this one has read
			kv.before = func() { must(write((s.Who + 1) % 3)) }
			fallthrough
		case "write", "end":
			p.last = p.last || s.What == "end"
			kv.next = s.Fates
			must(write(s.Who))
			kv.before, kv.next = nil, nil
		case "arrive":
			kv.arrive()
		}
	}
	for who := range all {
		all[who].last = true
		if err := write(who); err != nil {
			rt.Fatal(err)
		}
	}
	kv.arrive()
	r, err := book.Get(rt.Context(), stream, durable)
	if err != nil {
		rt.Fatal(err)
	}
	got := maps.Clone(r.Routes)
	maps.DeleteFunc(got, func(_ string, c Counts) bool { return c == Counts{} })
	if d := r.Durables[Name(stream, durable)]; !maps.Equal(got, want) || d.Arrived != wantArrived || len(r.Instances) > 0 {
		rt.Fatalf("the record has %v, %d arrived, instances %v\nwant %v, %d, none", got, d.Arrived, r.Instances, want, wantArrived)
	}
}

// The last addition of a process took its name out of the record, and the number of the addition with it. When the answer was lost, whoever
// repeated the addition made it once more.
func TestWriter_regressionTheLastAdditionIsRepeated(t *testing.T) {
	real := testBook(t)
	kv := &faultyKV{KeyValue: real.kv}
	book, made := &Book{real.nc, kv}, time.Now().UTC()
	a := &Addition{
		Routes:   map[string]Counts{"billing": {Received: 3, Done: 3}},
		Durables: map[string]Durable{Name("ORDERS", "billing"): {Start{Created: made}, Deliveries{Arrived: 3, First: 3}}},
		Opening:  Opening{At: made},
	}
	w := NewWriter("ORDERS", "billing", "one", "a")
	kv.next = []string{unanswered}
	if err := w.Finish(t.Context(), book, a); !errors.Is(err, errNoAnswer) || w.Pending() != a {
		t.Fatalf("%v, %v is pending", err, w.Pending())
	}
	if err := w.Finish(t.Context(), book, a); err != nil || w.Pending() != nil {
		t.Fatalf("%v, %v is pending", err, w.Pending())
	}
	r, err := book.Get(t.Context(), "ORDERS", "billing")
	if err != nil {
		t.Fatal(err)
	}
	if c := r.Total(); c.Received != 3 || c.Done != 3 || r.Durables[Name("ORDERS", "billing")].Arrived != 3 || len(r.Instances) != 0 {
		t.Errorf("%+v", r)
	}
}
