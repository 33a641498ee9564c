package partition

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/natstest"
)

// A tender removes what is settled and nothing else, in whatever order that is: messages of all partitions are settled at random, and what is not is still
// there. The last copy stays, so that the server goes on from it after a restart.
func TestTender_removesOnlyWhatIsSettled(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t)
	js := server.JetStream(t)
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "A", Subjects: []string{"a.*"}}); err != nil {
		t.Fatal(err)
	}
	g := Generation{Service: "relay", Route: "orders", Number: 1, Layout: Layout{Count: 3, Key: "{2}", Subjects: []string{"a.*"}, Stream: "A", Durable: "orders"}}
	if _, err := g.Make(t.Context(), js, Start{Sequence: 1}, 1); err != nil {
		t.Fatal(err)
	}
	find := func() *Stream {
		list, err := Find(t.Context(), js, "relay", "orders")
		if err != nil || len(list) != 1 {
			t.Fatal(list, err)
		}
		return list[0]
	}
	const all = 300
	for i := range all {
		if _, err := js.Publish(t.Context(), fmt.Sprintf("a.%d", i%17), nil); err != nil {
			t.Fatal(err)
		}
	}
	natstest.Eventually(t, "all are copied", func() bool { return find().Info.State.Msgs == all })
	open := make(map[uint64]jetstream.Msg)
	for n := range g.Count {
		c, err := js.CreateConsumer(t.Context(), g.Name(), jetstream.ConsumerConfig{Durable: g.DurableOf(n), FilterSubject: g.Part(n), AckPolicy: jetstream.AckExplicitPolicy})
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 { // one that nobody has read from yet
			continue
		}
		batch, err := c.FetchNoWait(all)
		if err != nil {
			t.Fatal(err)
		}
		for m := range batch.Messages() {
			meta, _ := m.Metadata()
			open[meta.Sequence.Stream] = m
		}
	}
	tender := Tender{JS: js}
	check := func(what string, left func(seq uint64) bool) {
		t.Helper()
		if n, err := tender.Tend(t.Context(), []*Stream{find()}); n > 0 || err != nil {
			t.Fatal(n, err)
		}
		stream, err := js.Stream(t.Context(), g.Name())
		if err != nil {
			t.Fatal(err)
		}
		for seq := uint64(1); seq <= all; seq++ {
			if _, err := stream.GetMsg(t.Context(), seq); err != nil && left(seq) {
				t.Fatalf("%s: message %d is gone: %v", what, seq, err)
			}
		}
	}
	everything := func(uint64) bool { return true }
	check("nothing is settled", everything)
	for len(open) > 0 {
		for seq, m := range open { // in no order
			if rand.IntN(3) > 0 {
				continue
			}
			if err := m.DoubleAck(t.Context()); err != nil {
				t.Fatal(err)
			}
			delete(open, seq)
		}
		check("one partition was not read", func(seq uint64) bool {
			_, is := open[seq]
			return is || g.Of(fmt.Sprintf("a.%d", (seq-1)%17)) == 0
		})
	}
	c, err := js.Consumer(t.Context(), g.Name(), g.DurableOf(0))
	if err != nil {
		t.Fatal(err)
	}
	batch, err := c.FetchNoWait(all)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for m := range batch.Messages() {
		if err := m.DoubleAck(t.Context()); err != nil {
			t.Fatal(err)
		}
		n++
	}
	if n == 0 {
		t.Error("what nobody had read from is empty")
	}
	tender.purged = nil
	check("all is settled", func(seq uint64) bool { return seq == all })
	if s := find().Info.State; s.Msgs != 1 {
		t.Errorf("%d messages are left", s.Msgs)
	}
	// Its place outlives a restart of the server, although the stream is as good as empty.
	server.Restart()
	js = server.JetStream(t)
	if _, err := js.Publish(t.Context(), "a.1", nil); err != nil {
		t.Fatal(err)
	}
	natstest.Eventually(t, "something is copied after a restart", func() bool { return find().Info.State.LastSeq > all })
	if s := find().Info.State; s.LastSeq != all+1 {
		t.Errorf("%d messages were copied again", s.LastSeq-all-1)
	}
}

// Copies are found by the sequence that the message has in the user's stream, whatever else is in both streams.
func TestStream_copyOf(t *testing.T) {
	js := natstest.Start(t).JetStream(t)
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "A", Subjects: []string{"a.*", "b"}}); err != nil {
		t.Fatal(err)
	}
	g := Generation{Service: "relay", Route: "orders", Number: 1, Layout: Layout{Count: 3, Key: "{2}", Subjects: []string{"a.*"}, Stream: "A", Durable: "orders"}}
	s, err := g.Make(t.Context(), js, Start{Sequence: 1}, 1)
	if err != nil {
		t.Fatal(err)
	}
	if at, err := s.CopyOf(t.Context(), js, 1); at != 0 || err != nil {
		t.Errorf("of nothing: %d, %v", at, err)
	}
	copies := map[uint64]bool{}
	for n := range uint64(200) {
		subject := "b"
		if rand.IntN(3) > 0 {
			subject = "a." + strconv.Itoa(rand.IntN(9))
			copies[n+1] = true
		}
		if _, err := js.Publish(t.Context(), subject, nil); err != nil {
			t.Fatal(err)
		}
		if rand.IntN(4) == 0 { // relay puts something there
			if _, err := js.Publish(t.Context(), g.Moved("a.1"), nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	stream, err := js.Stream(t.Context(), g.Name())
	if err != nil {
		t.Fatal(err)
	}
	natstest.Eventually(t, "it is copied", func() bool {
		copied, err := stream.Info(t.Context(), jetstream.WithSubjectFilter(g.Copied()))
		if err != nil {
			return false
		}
		n := uint64(0)
		for _, of := range copied.State.Subjects {
			n += of
		}
		return n == uint64(len(copies))
	})
	for range 20 {
		if err := stream.DeleteMsg(t.Context(), 1+rand.Uint64N(200)); err != nil && !errors.Is(err, jetstream.ErrMsgDeleteUnsuccessful) {
			t.Log(err)
		}
	}
	found := 0
	for n := range uint64(202) {
		at, err := s.CopyOf(t.Context(), js, n)
		if err != nil {
			t.Fatal(n, err)
		}
		if at == 0 {
			continue
		}
		found++
		m, err := stream.GetMsg(t.Context(), at)
		if err != nil {
			t.Fatal(err)
		}
		if of, ok := Source(m.Header.Get(SourceHeader)); !ok || of != n || !copies[n] {
			t.Errorf("copy of %d is %d, which is of %d", n, at, of)
		}
	}
	if found < len(copies)-20 || found > len(copies) {
		t.Errorf("%d of %d found", found, len(copies))
	}
}
