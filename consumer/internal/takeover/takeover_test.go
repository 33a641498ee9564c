package takeover

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/relaymq/relay/internal/inhand"
	"github.com/relaymq/relay/internal/natstest"
	"github.com/relaymq/relay/internal/retry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, natstest.Leaks()...) }

// hand is a durable with an ack wait of an hour, of which somebody has messages in hand.
type hand struct {
	*Takeover
	t        *testing.T
	url      string // of the server
	nc       *nats.Conn
	js       jetstream.JetStream
	stream   jetstream.Stream
	consumer jetstream.Consumer
	records  *retry.Records
	holds    atomic.Bool
	mine     atomic.Pointer[inhand.Snapshot]
	asked    func() *jetstream.ConsumerInfo
}

func newHand(t *testing.T, messages int) *hand {
	t.Helper()
	s := natstest.Start(t)
	h := &hand{t: t, url: s.URL(), nc: s.Conn(t), js: s.JetStream(t)}
	h.holds.Store(true)
	h.mine.Store(new(inhand.Snapshot))
	h.asked = h.info
	var err error
	h.stream, err = h.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "JOBS", Subjects: []string{"jobs.>"}, Storage: jetstream.MemoryStorage})
	h.do(err)
	h.consumer, err = h.stream.CreateConsumer(t.Context(), jetstream.ConsumerConfig{
		Durable: "billing", AckPolicy: jetstream.AckExplicitPolicy, AckWait: time.Hour, MaxAckPending: 2 * Many,
	})
	h.do(err)
	for range messages {
		_, err := h.js.PublishAsync("jobs.x", nil, jetstream.WithStallWait(time.Minute))
		h.do(err)
	}
	<-h.js.PublishAsyncComplete()
	bucket, err := retry.OpenBucket(t.Context(), h.js, "RELAY_ATTEMPTS", 1)
	h.do(err)
	t.Cleanup(bucket.Close)
	h.records = bucket.Records("JOBS", "billing", h.consumer.CachedInfo().Created)
	h.Takeover = New(Config{
		Conn: h.nc, Log: slog.New(slog.DiscardHandler), Stream: "JOBS", Durable: "billing", AckWait: func() time.Duration { return time.Hour },
		Holds: h.holds.Load, Records: func() Records { return h.records }, InHand: func() inhand.Snapshot { return *h.mine.Load() },
		Delivered: func() inhand.Snapshot { return *h.mine.Load() }, Ask: func(context.Context) (*jetstream.ConsumerInfo, error) { return h.asked(), nil },
	})
	return h
}

func (h *hand) do(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

func (h *hand) info() *jetstream.ConsumerInfo {
	h.t.Helper()
	info, err := h.consumer.Info(h.t.Context())
	h.do(err)
	return info
}

// take has somebody get so many messages, of which the first few stay in hand, and returns the sequences of these.
func (h *hand) take(n, keep int) (kept []uint64) {
	h.t.Helper()
	for n > 0 {
		batch, err := h.consumer.Fetch(min(n, 10_000), jetstream.FetchMaxWait(10*time.Second))
		h.do(err)
		for m := range batch.Messages() {
			n--
			if len(kept) < keep {
				md, err := m.Metadata()
				h.do(err)
				kept = append(kept, md.Sequence.Stream)
			} else {
				h.do(m.Ack())
			}
		}
		h.do(batch.Error())
	}
	return kept
}

// comes is what is delivered again within a moment.
func (h *hand) comes() (list []uint64) {
	h.t.Helper()
	batch, err := h.consumer.FetchNoWait(1000)
	h.do(err)
	for m := range batch.Messages() {
		md, err := m.Metadata()
		h.do(err)
		list = append(list, md.Sequence.Stream)
	}
	slices.Sort(list)
	return list
}

func (h *hand) wants(what string, want ...uint64) {
	h.t.Helper()
	var got []uint64
	for deadline := time.Now().Add(5 * time.Second); len(got) < len(want) && time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		got = append(got, h.comes()...)
	}
	if slices.Sort(got); !slices.Equal(got, want) {
		h.t.Errorf("%s: %v come again, want %v", what, got, want)
	}
}

// What is outstanding comes again at once, and a NAK of something else does nothing.
func TestGiveBack(t *testing.T) {
	t.Parallel()
	h := newHand(t, 10)
	h.take(6, 4)
	to, err := h.GiveBack(t.Context(), h.info().Delivered.Consumer, slices.Values([]uint64{2, 4, 5, 9}))
	if err != nil || to != 9 {
		t.Fatalf("to %d, error %v", to, err)
	}
	h.wants("2 and 4 were outstanding, and the rest is new", 2, 4, 7, 8, 9, 10)
}

// What the holder before had is given back as a whole when it is near, whoever noted something.
func TestTakeBack_near(t *testing.T) {
	t.Parallel()
	h := newHand(t, 8)
	kept := h.take(8, 3)
	h.TakeBack(t.Context(), h.info())
	h.wants("what was in hand", kept...)
}

func TestTakeBack_nothingInHand(t *testing.T) {
	t.Parallel()
	h := newHand(t, 5)
	h.take(5, 0)
	h.settled()
	h.TakeBack(t.Context(), h.info())
	h.wants("nothing")
}

func (h *hand) settled() {
	h.t.Helper()
	h.until(0)
}

// When the oldest one in hand is far behind, the holder's note says which they are, and only what was delivered since is named one by one.
func TestTakeBack_farBehindWithANote(t *testing.T) {
	t.Parallel()
	h := newHand(t, Many+2000)
	kept := h.take(Many+1000, 2)
	h.mine.Store(&inhand.Snapshot{To: Many + 1000, Unsettled: kept})
	ctx, stop := context.WithCancel(t.Context())
	var noting sync.WaitGroup
	noting.Go(func() { h.NoteInHand(ctx) })
	natstest.Eventually(t, "what is in hand is noted", func() bool {
		noted, err := h.records.InHand(t.Context())
		return err == nil && slices.Equal(noted.Unsettled, kept) && noted.To == Many+1000
	})
	stop()
	noting.Wait()
	since := h.take(1000, 1)
	h.until(len(kept) + len(since))
	next := New(h.cfg)
	next.TakeBack(t.Context(), h.info())
	if looked := next.back.to + 1 - next.back.from; looked != 0 {
		t.Errorf("%d sequences are left to look at", looked)
	}
	h.wants("what was noted, and what was delivered since", append(kept, since...)...)
}

// until waits for so many to be outstanding.
func (h *hand) until(outstanding int) {
	h.t.Helper()
	natstest.Eventually(h.t, fmt.Sprint(outstanding, " are outstanding"), func() bool { return h.info().NumAckPending == outstanding })
}

// Nothing is noted while all can be named, or by an instance that may not start anything any more.
func TestNoteInHand_onlyWhenItHelps(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		inHand inhand.Snapshot
		holds  bool
	}{
		"near":      {inhand.Snapshot{To: 100, Unsettled: []uint64{1}}, true},
		"nothing":   {inhand.Snapshot{To: Many}, true},
		"holds not": {inhand.Snapshot{To: Many, Unsettled: []uint64{1}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHand(t, 1)
			h.mine.Store(&c.inHand)
			h.holds.Store(c.holds)
			ctx, stop := context.WithTimeout(t.Context(), noteEvery+noteEvery/2)
			defer stop()
			h.NoteInHand(ctx)
			if noted, err := h.records.InHand(t.Context()); err == nil {
				t.Errorf("noted %+v", noted)
			}
		})
	}
}

// What this instance has in hand is not given back to it, and an instance without the claim gives back nothing.
func TestGiveBackAgain(t *testing.T) {
	t.Parallel()
	h := newHand(t, 6)
	h.take(6, 6)
	h.mine.Store(&inhand.Snapshot{To: 6, Unsettled: []uint64{2, 3}})
	h.holds.Store(false)
	h.GiveBackAgain(t.Context(), h.info(), 5)
	h.wants("of an instance without the claim")
	h.holds.Store(true)
	h.GiveBackAgain(t.Context(), h.info(), 5)
	h.wants("what is outstanding and not in hand, up to 5", 1, 4, 5)
}

// gap is something missing before top.
type gap struct {
	missing bool
	top, to uint64
}

func (g gap) Missing() bool { return g.missing }
func (g gap) Top() uint64   { return g.top }
func (g gap) To() uint64    { return g.to }

// What is missing is asked for again a few times, first when a check has passed since, for it may be on its way.
func TestStillMissing(t *testing.T) {
	t.Parallel()
	h := New(Config{})
	if to := h.StillMissing(gap{true, 10, 8}); to != 0 {
		t.Errorf("at once: %d, want 0", to)
	}
	if to := h.StillMissing(gap{true, 20, 15}); to != 10 {
		t.Errorf("then: %d, want what had been delivered before, 10", to)
	}
	for n := 1; n < missingTimes; n++ {
		if to := h.StillMissing(gap{true, 30, 15}); to != 15 {
			t.Errorf("time %d: %d, want what is missing, 15", n, to)
		}
	}
	if to := h.StillMissing(gap{true, 30, 15}); to != 0 {
		t.Errorf("after %d times: %d, want 0", missingTimes, to)
	}
	h.StillMissing(gap{})
	if to := h.StillMissing(gap{true, 40, 40}); to != 0 {
		t.Errorf("another one, at once: %d, want 0", to)
	}
	if to := h.StillMissing(gap{true, 50, 45}); to != 40 {
		t.Errorf("another one: %d, want 40", to)
	}
}

// A connection that is closed is told, with how far the server has looked.
func TestGiveBack_noAnswer(t *testing.T) {
	t.Parallel()
	h := newHand(t, 3)
	h.take(3, 3)
	h.cfg.Conn.Close()
	if to, err := h.GiveBack(t.Context(), 3, slices.Values([]uint64{1, 2, 3})); err != nats.ErrConnectionClosed || to != 0 {
		t.Errorf("to %d, error %v", to, err)
	}
	h.giveBackRest(t.Context())
}

// What was given back over a connection that is lost is given back again over the next one. The answer that could not come was awaited for 5 s, and nothing was pulled
// meanwhile.
func TestTakeBack_regressionTheConnectionIsLostMeanwhile(t *testing.T) {
	t.Parallel()
	h := newHand(t, 3)
	h.take(3, 3)
	link := natstest.NewProxy(t, h.url)
	h.cfg.Conn = link.Conn(t)
	info := h.info()
	link.Stall()
	cut := time.AfterFunc(50*time.Millisecond, func() {
		link.Cut()
		link.Resume()
	})
	defer cut.Stop()
	began := time.Now()
	h.TakeBack(t.Context(), info)
	if took := time.Since(began); took > 4*time.Second {
		t.Errorf("it took %v", took)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var noting sync.WaitGroup
	noting.Go(func() { h.NoteInHand(ctx) })
	h.wants("after the takeover", 1, 2, 3)
	cancel()
	noting.Wait()
}
