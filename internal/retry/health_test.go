package retry

import (
	"log/slog"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/natstest"
	"github.com/relaymq/relay/internal/ownstream"
)

// A follower that lags behind answered direct gets with counts of attempts that were too low: of 3,000 messages 826 were started
// more often than they may.
func TestRecords_areReadFromTheLeader(t *testing.T) {
	nodes := natstest.Cluster(t, 3)
	nc := nodes[0].Conn(t)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	b, err := OpenBucket(t.Context(), js, "RELAY_ATTEMPTS", 3)
	if err != nil {
		t.Fatal(err)
	}
	// A follower that knows nothing yet, and is quicker than the others.
	asked := make(chan string, 16)
	sub, err := nc.Subscribe(ownstream.APIPrefix(js)+"DIRECT.GET.KV_RELAY_ATTEMPTS.>", func(m *nats.Msg) {
		asked <- m.Subject
		_ = m.RespondMsg(&nats.Msg{Header: nats.Header{"Status": {"404"}, "Description": {"Message Not Found"}}})
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	natstest.Eventually(t, "the bucket takes a record", func() bool { // the other servers hear of a new stream a moment later
		return b.Records("ORDERS", "billing", madeAt).Put(t.Context(), 7, 1, failed(4)) == nil
	})
	other := b.Records("ORDERS", "billing", madeAt)
	if n := attempts(t, other, 7, 2); n != 4 {
		t.Errorf("%d attempts read, want 4", n)
	}
	if n := attempts(t, other, 8, 2); n != 0 {
		t.Errorf("%d attempts of a message that never failed", n)
	}
	if err := other.Delete(t.Context(), 7); err != nil {
		t.Fatal(err)
	}
	if n := attempts(t, b.Records("ORDERS", "billing", madeAt), 7, 3); n != 0 {
		t.Errorf("%d attempts after the record was deleted", n)
	}
	select {
	case subject := <-asked:
		t.Errorf("a replica was asked: %s", subject)
	default:
	}
}

// A bucket that does not answer costs one request a second, whoever needs it, and is noticed when it is back.
func TestBucket_asksSeldomWhileItIsAway(t *testing.T) {
	b, js := bucket(t)
	r := b.Records("ORDERS", "billing", madeAt)
	stream, err := js.Stream(t.Context(), b.streamName())
	if err != nil {
		t.Fatal(err)
	}
	c := stream.CachedInfo().Config
	c.MaxMsgSize = 1
	if _, err := js.UpdateStream(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	for seq := range uint64(1000) {
		if err := r.Put(t.Context(), seq, 1, failed(1)); err == nil {
			t.Fatal("a record was taken")
		}
	}
	if since, err := b.Trouble(); err == nil || since.Before(began) || since.After(time.Now()) {
		t.Errorf("trouble since %v: %v", since, err)
	}
	go b.Watch(t.Context(), slog.New(slog.DiscardHandler))
	c.MaxMsgSize = -1
	if _, err := js.UpdateStream(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	natstest.Eventually(t, "it is noticed that the bucket takes records again", func() bool {
		_, err := b.Trouble()
		return err == nil
	})
	put(t, r, 7, 1, failed(1))
}
