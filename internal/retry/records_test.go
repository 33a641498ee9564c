package retry

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/natstest"
)

var madeAt = time.Unix(1_700_000_000, 123)

func bucket(t *testing.T) (*Bucket, jetstream.JetStream) {
	t.Helper()
	js := natstest.Start(t).JetStream(t)
	b, err := OpenBucket(t.Context(), js, "RELAY_ATTEMPTS", 1)
	if err != nil {
		t.Fatal(err)
	}
	return b, js
}

func put(t *testing.T, r *Records, seq, deliveries uint64, rec Record) {
	t.Helper()
	if err := r.Put(t.Context(), seq, deliveries, rec); err != nil {
		t.Fatal(err)
	}
}

func attempts(t *testing.T, r *Records, seq, deliveries uint64) int {
	t.Helper()
	rec, err := r.Get(t.Context(), seq, deliveries)
	if err != nil {
		t.Fatal(err)
	}
	return rec.Attempts
}

func failed(n int) Record {
	return Record{Attempts: n, FirstFailure: madeAt, LastFailure: madeAt.Add(time.Duration(n) * time.Second)}
}

// Two instances take turns with a message. What one of them remembers is outdated when the other had it in between: with
// that, the message got twice its attempts.
func TestRecords_instancesTakeTurns(t *testing.T) {
	b, _ := bucket(t)
	one, two := b.Records("ORDERS", "billing", madeAt), b.Records("ORDERS", "billing", madeAt)
	for n := range uint64(10) {
		r := one
		if n%3 == 1 {
			r = two
		}
		if got := attempts(t, r, 7, n+1); got != int(n) {
			t.Fatalf("delivery %d: %d attempts known", n+1, got)
		}
		put(t, r, 7, n+1, failed(int(n)+1))
	}
}

func TestRecords_cached(t *testing.T) {
	b, _ := bucket(t)
	r := b.Records("ORDERS", "billing", madeAt)
	put(t, r, 7, 3, failed(1))
	for deliveries, want := range map[uint64]bool{1: false, 2: false, 3: true, 4: true, 5: false} {
		if _, known := r.Cached(7, deliveries); known != want {
			t.Errorf("delivery %d: known %v, want %v", deliveries, known, want)
		}
	}
	if _, known := r.Cached(8, 2); known {
		t.Error("a message without a record is known")
	}
}

// Many instances record failures of the same messages at once: the greatest count stays, with the first failure of all.
func TestRecords_greaterCountWins(t *testing.T) {
	b, _ := bucket(t)
	const messages, instances = 20, 6
	var all sync.WaitGroup
	for i := range instances {
		r := b.Records("ORDERS", "billing", madeAt)
		all.Go(func() {
			for seq := range uint64(messages) {
				rec := failed(1 + (i+int(seq))%instances)
				rec.FirstFailure = madeAt.Add(time.Duration((i*5+int(seq))%instances) * time.Millisecond)
				if err := r.Put(t.Context(), seq, 1, rec); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	for seq := range uint64(messages) {
		rec, err := b.Records("ORDERS", "billing", madeAt).Get(t.Context(), seq, 2)
		if err != nil || rec.Attempts != instances || !rec.FirstFailure.Equal(madeAt) {
			t.Errorf("message %d: stored %+v, %v; want %d attempts since %v", seq, rec, err, instances, madeAt)
		}
	}
}

func TestRecords_delete(t *testing.T) {
	b, js := bucket(t)
	deletes(t, b, js)
}

// A bucket that somebody made without expiring markers serves as well.
func TestRecords_deleteWithoutMarkers(t *testing.T) {
	js := natstest.Start(t).JetStream(t)
	if _, err := js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "RELAY_ATTEMPTS"}); err != nil {
		t.Fatal(err)
	}
	b, err := OpenBucket(t.Context(), js, "RELAY_ATTEMPTS", 1)
	if err != nil {
		t.Fatal(err)
	}
	deletes(t, b, js)
}

func deletes(t *testing.T, b *Bucket, js jetstream.JetStream) {
	t.Helper()
	one, two := b.Records("ORDERS", "billing", madeAt), b.Records("ORDERS", "billing", madeAt)
	put(t, one, 7, 1, failed(1))
	put(t, one, 8, 1, failed(1))
	for range 2 { // a second time there is nothing left, which is no error
		if err := one.Delete(t.Context(), 7); err != nil {
			t.Fatal(err)
		}
	}
	if got := attempts(t, two, 7, 2); got != 0 {
		t.Errorf("%d attempts after the record was deleted", got)
	}
	if got := attempts(t, two, 8, 2); got != 1 {
		t.Errorf("%d attempts of another message", got)
	}
	put(t, one, 7, 2, failed(1)) // it can be made again
	if err := two.Delete(t.Context(), 7); err != nil {
		t.Fatal(err)
	}
	if err := two.Delete(t.Context(), 8); err != nil {
		t.Fatal(err)
	}
	natstest.Eventually(t, "no marker is left behind", func() bool {
		st, err := js.Stream(t.Context(), "KV_RELAY_ATTEMPTS")
		return err == nil && st.CachedInfo().State.Msgs == 0
	})
}

// A later write by another instance is not deleted with the one that was known here: its message is not settled.
func TestRecords_deleteLeavesWhatIsNewer(t *testing.T) {
	b, _ := bucket(t)
	one, two := b.Records("ORDERS", "billing", madeAt), b.Records("ORDERS", "billing", madeAt)
	put(t, one, 7, 1, failed(1))
	put(t, two, 7, 2, failed(2))
	if err := one.Delete(t.Context(), 7); err != nil {
		t.Fatal(err)
	}
	if got := attempts(t, two, 7, 9); got != 2 {
		t.Errorf("%d attempts, want the 2 that another instance wrote", got)
	}
}

// A handler that was given up returned at last, and took back what had been written before it began: with that went the
// attempt that had been recorded meanwhile.
func TestRecords_regressionUnmarkLeavesWhatIsNewer(t *testing.T) {
	b, _ := bucket(t)
	for name, before := range map[string]Record{"no record": {}, "a record": failed(1)} {
		t.Run(name, func(t *testing.T) {
			r := b.Records("ORDERS", name, madeAt)
			if before.Known() {
				put(t, r, 7, 1, before)
			}
			mark := before
			mark.Solo = "me"
			first, err := r.Mark(t.Context(), 7, 1, mark)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := r.Marked(t.Context(), 7, 1, "me"); err != nil || got != first {
				t.Errorf("marked by me at %d, %v, want %d", got, err, first)
			}
			if got, err := r.Marked(t.Context(), 7, 1, "other"); err != nil || got != 0 {
				t.Errorf("marked by another at %d, %v", got, err)
			}
			put(t, r, 7, 1, failed(2))
			if err := r.Unmark(t.Context(), 7, 1, before, first); err != nil {
				t.Fatal(err)
			}
			fresh := b.Records("ORDERS", name, madeAt)
			for _, r := range []*Records{r, fresh} {
				if n := attempts(t, r, 7, 2); n != 2 {
					t.Errorf("%d attempts are known, want 2", n)
				}
			}
			// One that nobody wrote over goes.
			second, err := r.Mark(t.Context(), 7, 2, Record{Solo: "me", Attempts: 2, LastFailure: madeAt})
			if err != nil {
				t.Fatal(err)
			}
			if err := r.Unmark(t.Context(), 7, 2, before, second); err != nil {
				t.Fatal(err)
			}
			if rec, err := fresh.Get(t.Context(), 7, 9); err != nil || rec.Solo != "" || rec.Known() != before.Known() {
				t.Errorf("left: %+v, %v", rec, err)
			}
		})
	}
}

func TestRecords_sweep(t *testing.T) {
	b, js := bucket(t)
	now := b.Records("ORDERS", "billing", madeAt)
	for _, seq := range []uint64{1, 5, 6, 10} {
		put(t, now, seq, 1, failed(1))
	}
	others := map[string]*Records{
		"of another durable":       b.Records("ORDERS", "billing2", madeAt),
		"of another stream":        b.Records("ORDERS2", "billing", madeAt),
		"of a later durable":       b.Records("ORDERS", "billing", madeAt.Add(1)),
		"of a name that begins so": b.Records("ORDERS", "billing.x", madeAt),
	}
	for _, r := range others {
		put(t, r, 2, 1, failed(1))
	}
	earlier := b.Records("ORDERS", "billing", madeAt.Add(-1))
	put(t, earlier, 100, 1, failed(1))

	removed, err := now.Sweep(t.Context(), 5)
	if err != nil || removed != 3 {
		t.Errorf("removed %d, %v; want 1, 5 and that of the earlier durable", removed, err)
	}
	for what, r := range others {
		if attempts(t, r, 2, 9) != 1 {
			t.Errorf("record %s is gone", what)
		}
	}
	kv, err := js.KeyValue(t.Context(), "RELAY_ATTEMPTS")
	if err != nil {
		t.Fatal(err)
	}
	keys, err := kv.Keys(t.Context())
	if err != nil || len(keys) != 6 {
		t.Errorf("left are %v, %v", keys, err)
	}
	if removed, err := b.Records("NONE", "none", madeAt).Sweep(t.Context(), 5); err != nil || removed != 0 {
		t.Errorf("nothing to sweep: %d, %v", removed, err)
	}
}

// Streams and durables may be called what a key cannot hold.
func TestRecords_oddNames(t *testing.T) {
	b, js := bucket(t)
	names := []string{"ORDERS", "Bestellungen-größer", "a$b", "=K5", "_", "with(brackets)", "ünï", "a=b", strings.Repeat("x", 200)}
	for i, stream := range names {
		if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: stream, Subjects: []string{fmt.Sprint("odd", i)}}); err != nil {
			t.Fatalf("the server refuses %q: %v", stream, err)
		}
		put(t, b.Records(stream, names[len(names)-1-i], madeAt), 1, 1, failed(1+i))
	}
	for i, stream := range names {
		r := b.Records(stream, names[len(names)-1-i], madeAt)
		if got := attempts(t, r, 1, 2); got != 1+i {
			t.Errorf("%q: %d attempts, want %d", stream, got, 1+i)
		}
		if n, err := r.Sweep(t.Context(), 1); err != nil || n != 1 {
			t.Errorf("%q: swept %d, %v", stream, n, err)
		}
	}
}

// A write whose answer was lost is found to be our own when it is tried again.
func TestRecords_putAgain(t *testing.T) {
	b, _ := bucket(t)
	rec := failed(3)
	rec.LastError, rec.Due, rec.Dead = "no such customer", time.Now().Add(time.Minute), "exhausted"
	put(t, b.Records("ORDERS", "billing", madeAt), 1, 1, rec)
	again := b.Records("ORDERS", "billing", madeAt) // knows no revision
	put(t, again, 1, 1, rec)
	got, err := again.Get(t.Context(), 1, 1)
	if err != nil || got.Attempts != 3 || got.LastError != rec.LastError || !got.Due.Equal(rec.Due) || got.Dead != rec.Dead {
		t.Errorf("stored %+v, %v", got, err)
	}
}

func TestRecords_errors(t *testing.T) {
	b, js := bucket(t)
	r := b.Records("ORDERS", "billing", madeAt)
	kv, err := js.KeyValue(t.Context(), "RELAY_ATTEMPTS")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kv.PutString(t.Context(), r.key(1), "not JSON"); err != nil {
		t.Fatal(err)
	}
	if rec, err := r.Get(t.Context(), 1, 2); err != nil || rec.Dead == "" || !rec.Known() || !strings.Contains(rec.LastError, r.key(1)) {
		t.Errorf("Get of what is no record: %+v, %v", rec, err)
	}
	if err := r.Put(t.Context(), 1, 2, failed(1)); err != nil {
		t.Errorf("Put over what is no record: %v", err)
	}
	if rec, err := b.Records("ORDERS", "billing", madeAt).Get(t.Context(), 1, 2); err != nil || rec.Attempts != 1 {
		t.Errorf("Get of it: %+v, %v", rec, err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Put(over, 2, 1, failed(1)); err == nil {
		t.Error("Put without a server succeeds")
	}
	if _, known := r.Cached(2, 2); known {
		t.Error("what was not stored is remembered")
	}
}
