package looks

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/relaymq/relay/internal/natstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, natstest.Leaks()...) }

// Many who look at a stream at once make one request, and everybody gets an answer that is as young as was asked for.
func TestStreams_shareAnAnswer(t *testing.T) {
	t.Parallel()
	s := natstest.Start(t)
	js, nc := s.JetStream(t), s.Conn(t)
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "A", Subjects: []string{"a.>"}}); err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int64
	sub, err := nc.Subscribe("$JS.API.STREAM.INFO.A", func(*nats.Msg) { asked.Add(1) })
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	count := func() int64 {
		if err := nc.Flush(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond)
		return asked.Swap(0)
	}
	count()
	streams := New(js)
	get := func(age time.Duration) Look {
		look, err := streams.Get(t.Context(), "A", age)
		if err != nil {
			t.Error(err)
		}
		return look
	}
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() { get(time.Hour) })
	}
	all.Wait()
	if n := count(); n != 1 {
		t.Errorf("20 who look at once made %d requests", n)
	}
	before := get(time.Hour)
	if _, err := js.Publish(t.Context(), "a.b", nil); err != nil {
		t.Fatal(err)
	}
	if now := get(time.Hour); ContentOf(now.CachedInfo()) != ContentOf(before.CachedInfo()) || !now.Asked.Equal(before.Asked) {
		t.Error("an answer that is young enough was asked for again")
	}
	began := time.Now()
	now := get(0)
	if ContentOf(now.CachedInfo()) == ContentOf(before.CachedInfo()) || now.Asked.Before(began) {
		t.Error("an answer of age 0 is older than the call")
	}
	if err := js.DeleteStream(t.Context(), "A"); err != nil {
		t.Fatal(err)
	}
	if _, err := streams.Get(t.Context(), "A", 0); !errors.Is(err, jetstream.ErrStreamNotFound) {
		t.Errorf("a stream that is not there: %v", err)
	}
	if _, err := streams.Get(t.Context(), "A", time.Hour); !errors.Is(err, jetstream.ErrStreamNotFound) {
		t.Errorf("a stream that was deleted is still there for who looks next: %v", err)
	}
}

// Who looks for a stream and gives up does not wait for the one who asks.
func TestStreams_endsWithItsContext(t *testing.T) {
	t.Parallel()
	streams := New(natstest.Start(t).JetStream(t))
	_, _ = streams.Get(t.Context(), "A", 0)
	streams.list["A"].turn <- struct{}{} // somebody asks
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := streams.Get(ctx, "A", time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// The answer was lost with the connection, and all who look at the stream waited for it.
func TestStreams_regressionTheAnswerIsLostWithTheConnection(t *testing.T) {
	t.Parallel()
	s := natstest.Start(t)
	if _, err := s.JetStream(t).CreateStream(t.Context(), jetstream.StreamConfig{Name: "A", Subjects: []string{"a.>"}}); err != nil {
		t.Fatal(err)
	}
	link := natstest.NewProxy(t, s.URL())
	js, err := jetstream.New(link.Conn(t))
	if err != nil {
		t.Fatal(err)
	}
	cut := sync.OnceFunc(func() { link.Cut(); link.Delay(0) })
	there := s.Conn(t)
	if _, err := there.Subscribe("$JS.API.STREAM.INFO.A", func(*nats.Msg) { cut() }); err != nil {
		t.Fatal(err)
	}
	if err := there.Flush(); err != nil {
		t.Fatal(err)
	}
	link.Delay(200 * time.Millisecond) // so that the answer is still on its way
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if look, err := New(js).Get(ctx, "A", 0); err != nil || look.CachedInfo().Config.Name != "A" {
		t.Error(err)
	}
}

// Next finds the first message from a sequence on, and says nothing of one that is not there.
func TestNext(t *testing.T) {
	t.Parallel()
	s := natstest.Start(t)
	js, nc := s.JetStream(t), s.Conn(t)
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "A", Subjects: []string{"a.>"}}); err != nil {
		t.Fatal(err)
	}
	for _, subject := range []string{"a.x", "a.y", "a.x"} {
		if _, err := js.PublishMsg(t.Context(), &nats.Msg{Subject: subject, Header: nats.Header{"K": {"v"}}, Data: []byte("body")}); err != nil {
			t.Fatal(err)
		}
	}
	next := func(stream, pattern string, seq uint64) (*Message, error) {
		return Next(t.Context(), nc, jetstream.DefaultAPIPrefix, stream, pattern, seq)
	}
	for seq, want := range map[uint64]uint64{1: 1, 2: 3, 3: 3} {
		m, err := next("A", "a.x", seq)
		if err != nil || m == nil || m.Sequence != want || m.Subject != "a.x" || string(m.Data) != "body" || len(m.Header) == 0 || time.Since(m.Time) > time.Minute {
			t.Errorf("from %d: %+v, %v", seq, m, err)
		}
	}
	if m, err := next("A", "a.x", 4); m != nil || err != nil {
		t.Errorf("after the last one: %+v, %v", m, err)
	}
	if _, err := next("B", "a.x", 1); err == nil {
		t.Error("a stream that is not there has no fault")
	}
}
