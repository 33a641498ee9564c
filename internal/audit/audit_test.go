package audit

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/relaymq/relay/internal/natstest"
	"github.com/relaymq/relay/internal/transient"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, natstest.Leaks()...) }

// An addition of which no answer came is made once, whoever else writes in between; and a durable that was made anew begins anew.
func TestWriter_oncePerAddition(t *testing.T) {
	nc := natstest.Start(t).Conn(t)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	book, err := Open(t.Context(), js, "relay", 1)
	if err != nil {
		t.Fatal(err)
	}
	made := time.Now().UTC()
	const stream, durable = "A stream", "billing"
	add := func(w *Writer, n uint64, created time.Time, delivered uint64, last bool) {
		t.Helper()
		a := &Addition{
			Routes:   map[string]Counts{"billing": {Received: n, Done: n}},
			Durables: map[string]Durable{Name(stream, durable): {Start{created, delivered}, Deliveries{Arrived: n, First: n}}},
			Hand:     1, Opening: Opening{At: made, Carried: delivered},
		}
		add := w.Add
		if last {
			add = w.Finish
		}
		if err := add(t.Context(), book, a); err != nil {
			t.Fatal(err)
		}
	}
	get := func() *Record {
		t.Helper()
		r, err := book.Get(t.Context(), stream, durable)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	w := NewWriter(stream, durable, "one", "a")
	add(w, 3, made, 7, false)
	w.number-- // as if the answer had been lost
	add(NewWriter(stream, durable, "two", "b"), 5, made, 2, false)
	add(w, 3, made, 7, false)
	add(w, 1, made, 7, true)
	r := get()
	if c := r.Total(); c.Received != 9 || c.Done != 9 || r.Carried != 2 || r.Durables[Name(stream, durable)].Delivered != 2 || r.Whole ||
		len(r.Instances) != 1 || r.Instances["two"].Hand != 1 {
		t.Errorf("%+v", r)
	}
	add(NewWriter(stream, durable, "three", "c"), 1, made.Add(time.Hour), 0, false)
	if r := get(); r.Total().Received != 1 || !r.Whole {
		t.Errorf("made anew: %+v", r)
	}
	// An instance that has the old durable still, and is at its end.
	late := NewWriter(stream, durable, "one", "a")
	add(late, 7, made, 7, false)
	add(late, 7, made, 7, true)
	if r := get(); r.Total().Received != 1 || len(r.Instances) != 1 || r.Instances["three"].Name != "c" || late.Pending() != nil {
		t.Errorf("after an addition of the old durable: %+v", r)
	}
}

// In a cluster a write that meets another one which is proposed, and not stored yet, is refused with another code than on one server. It was an
// error then, and not a reason to read again.
func TestWriter_regressionInstancesOfAClusterWriteAtOnce(t *testing.T) {
	nodes := natstest.Cluster(t, 3)
	made := time.Now().UTC()
	const stream, durable, each = "ORDERS", "billing", 25
	var writing sync.WaitGroup
	var book *Book
	for i, node := range nodes {
		js, err := jetstream.New(node.Conn(t))
		if err != nil {
			t.Fatal(err)
		}
		err = nats.ErrTimeout
		for err != nil { // each asks again when nobody answers, as relay does
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			book, err = Open(ctx, js, "relay", 3)
			if cancel(); err != nil && !transient.Is(transient.Made(err)) {
				t.Fatal(err)
			}
		}
		b, w := book, NewWriter(stream, durable, fmt.Sprint(i), fmt.Sprint(i))
		writing.Go(func() {
			for range each {
				a := &Addition{
					Routes:   map[string]Counts{"billing": {Received: 1}},
					Durables: map[string]Durable{Name(stream, durable): {Start{made, 0}, Deliveries{Arrived: 1, First: 1}}},
					Opening:  Opening{At: made},
				}
				err := w.Add(t.Context(), b, a)
				for transient.Is(err) { // on a busy machine a leader steps down now and then
					time.Sleep(20 * time.Millisecond)
					err = w.Add(t.Context(), b, w.Pending())
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	writing.Wait()
	r, err := book.Get(t.Context(), stream, durable)
	for ; transient.Is(err); r, err = book.Get(t.Context(), stream, durable) {
		time.Sleep(20 * time.Millisecond)
	}
	if err != nil || r.Total().Received != uint64(each*len(nodes)) {
		t.Errorf("%+v, %v", r, err)
	}
}
