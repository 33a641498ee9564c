package kvwatch

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/relaymq/relay/internal/natstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, natstest.Leaks()...) }

func TestStop_regressionUpdatesThatNobodyReadsLeaveNoGoroutine(t *testing.T) {
	kv := empty(t, natstest.Start(t).Conn(t))
	for i := range 600 {
		if _, err := kv.PutString(t.Context(), strconv.Itoa(i), "x"); err != nil {
			t.Fatal(err)
		}
	}
	w, err := kv.WatchAll(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(10 * time.Second)
	for len(w.Updates()) < cap(w.Updates()) {
		if time.Now().After(deadline) {
			t.Fatalf("%d updates", len(w.Updates()))
		}
		time.Sleep(time.Millisecond)
	}
	Stop(w)
}

// The end of a watch was awaited for 5 s when the server of its consumer was gone.
func TestStop_regressionItDoesNotWaitForAServer(t *testing.T) {
	s := natstest.Start(t)
	link := natstest.NewProxy(t, s.Addr())
	nc, err := nats.Connect(link.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	kv := empty(t, nc)
	w, err := kv.WatchAll(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	link.Stall()
	began := time.Now()
	Stop(w)
	if took := time.Since(began); took > time.Second {
		t.Errorf("it took %v", took)
	}
}

func empty(t *testing.T, nc *nats.Conn) jetstream.KeyValue {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	kv, err := js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "B"})
	if err != nil {
		t.Fatal(err)
	}
	return kv
}

// bucket has 600 keys, more than nats.go's channel of updates has room for, and one that is deleted.
func bucket(t *testing.T) (*nats.Conn, jetstream.KeyValue) {
	t.Helper()
	nc := natstest.Start(t).Conn(t)
	kv := empty(t, nc)
	for i := range 601 {
		if _, err := kv.PutString(t.Context(), "k."+strconv.Itoa(i), "x"); err != nil {
			t.Fatal(err)
		}
	}
	if err := kv.Delete(t.Context(), "k.600"); err != nil {
		t.Fatal(err)
	}
	return nc, kv
}

func TestKeys_allButDeletedOnes(t *testing.T) {
	nc, kv := bucket(t)
	keys, err := Keys(t.Context(), nc, kv, "k.>")
	if err != nil || len(keys) != 600 || !slices.IsSorted(keys) {
		t.Errorf("%d keys, %v", len(keys), err)
	}
	if keys, err := Keys(t.Context(), nc, kv, "other.>"); err != nil || len(keys) != 0 {
		t.Errorf("of no key: %v, %v", keys, err)
	}
}

// A list that nats.go makes ends without an error here, as if it were whole, and leaves a goroutine behind.
func TestAll_regressionAListThatIsCutShortSaysSoAndLeavesNoGoroutine(t *testing.T) {
	t.Run("the context ends", func(t *testing.T) {
		_, kv := bucket(t)
		ctx, cancel := context.WithCancel(t.Context())
		n, err := read(ctx, kv, cancel)
		if n >= 600 || !errors.Is(err, context.Canceled) {
			t.Errorf("%d entries, %v", n, err)
		}
	})
	t.Run("the connection ends", func(t *testing.T) {
		nc, kv := bucket(t)
		n, err := read(t.Context(), kv, nc.Close)
		if n >= 600 || !errors.Is(err, ErrCutShort) {
			t.Errorf("%d entries, %v", n, err)
		}
	})
}

// read counts entries, and calls cut after a few of them.
func read(ctx context.Context, kv jetstream.KeyValue, cut func()) (n int, err error) {
	for _, err := range All(ctx, kv, "k.>") {
		if err != nil {
			return n, err
		}
		if n++; n == 10 {
			time.Sleep(100 * time.Millisecond) // nats.go fills its channel, and holds the next one
			cut()
		}
	}
	return n, nil
}

// What was to come is lost with the connection, and nothing says so: nats.go begins a watch anew when it has heard nothing for 10 s.
func TestKeys_regressionTheConnectionIsLostMeanwhile(t *testing.T) {
	t.Parallel()
	s := natstest.Start(t)
	link := natstest.NewProxy(t, s.URL())
	nc := link.Conn(t)
	kv := empty(t, nc)
	if _, err := kv.PutString(t.Context(), "k", "x"); err != nil {
		t.Fatal(err)
	}
	for n := range 20 {
		cut := time.AfterFunc(time.Duration(n)*100*time.Microsecond, link.Cut)
		began := time.Now()
		keys, err := Keys(t.Context(), nc, kv, ">")
		for errors.Is(err, nats.ErrReconnectBufExceeded) || errors.Is(err, nats.ErrDisconnected) {
			keys, err = Keys(t.Context(), nc, kv, ">")
		}
		if took := time.Since(began); err != nil || len(keys) != 1 || took > 4*time.Second {
			t.Errorf("%q, %v, after %v", keys, err, took)
		}
		cut.Stop()
	}
}
