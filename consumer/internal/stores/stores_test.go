package stores

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/natstest"
)

var quiet = slog.New(slog.DiscardHandler)

// once is an opening that tries each of them one time, and notes what was tried.
func once(tried *[]string) Opening {
	var mu sync.Mutex
	return Opening{
		Began: time.Now(),
		Persist: func(ctx context.Context, what string, try func(context.Context) error) error {
			mu.Lock()
			*tried = append(*tried, what)
			mu.Unlock()
			return try(ctx)
		},
		Attempt: func(ctx context.Context, try func(context.Context) error) error { return try(ctx) },
	}
}

func there(t *testing.T, js jetstream.JetStream) (list []string) {
	t.Helper()
	names := js.StreamNames(t.Context())
	for name := range names.Name() {
		list = append(list, name)
	}
	if err := names.Err(); err != nil {
		t.Fatal(err)
	}
	slices.Sort(list)
	return list
}

func TestStores_openMakesWhatIsMissing(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	bounds := &Bounds{Age: time.Hour, Bytes: 1 << 20}
	s := New(js, Config{Service: "shop", Instance: "a", Replicas: 1, Events: bounds, Archive: bounds}, quiet)
	if s.Lives.Load() != nil || len(there(t, js)) > 0 {
		t.Error("something is open before the start")
	}
	for range 2 { // the second time all are there
		var tried []string
		if err := errors.Join(s.Open(t.Context(), once(&tried))...); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Records.Close)
		slices.Sort(tried)
		want := []string{"bucket SHOP_ATTEMPTS", "bucket SHOP_INSTANCES", "bucket SHOP_LEDGER", "stream SHOP_ARCHIVE", "stream SHOP_EVENTS", "stream SHOP_RETRY", "the dead letters"}
		if !slices.Equal(tried, want) {
			t.Errorf("tried %q, not %q", tried, want)
		}
	}
	if s.Retries.Name() != "SHOP_RETRY" || s.Dead.Name() != "SHOP_DLQ" || s.Ledgers == nil || s.Lives.Load() == nil {
		t.Errorf("open are %+v", s)
	}
	// What a start makes later, package upkeep makes.
	want := slices.DeleteFunc(names(s.Streams(nil)), func(name string) bool { return name == "KV_SHOP_STATE" || name == "KV_SHOP_JOBS" })
	if have := there(t, js); !slices.Equal(have, want) {
		t.Errorf("there are %q, not %q", have, want)
	}
}

// Each fault is told by itself, and says which key of the configuration asks for the stream.
func TestStores_openTellsOfEachFault(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	for name, subject := range map[string]string{"SHOP_EVENTS": "other.a", "SHOP_ARCHIVE": "other.b"} {
		if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{subject}, Retention: jetstream.WorkQueuePolicy}); err != nil {
			t.Fatal(err)
		}
	}
	bounds := &Bounds{Age: time.Hour, Bytes: 1 << 20}
	s := New(js, Config{Service: "shop", Replicas: 1, Events: bounds, Archive: bounds}, quiet)
	var tried []string
	err := errors.Join(s.Open(t.Context(), once(&tried))...)
	for _, part := range []string{"stream SHOP_EVENTS, for events.store: ", "stream SHOP_ARCHIVE, for archive.outcomes: "} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%q is not in: %v", part, err)
		}
	}
	if s.Records == nil {
		t.Fatal("the bucket of attempts is not open")
	}
	s.Records.Close()
}

// The first try of a start is short: it may have waited for an answer that went to another instance.
func TestStores_openTriesLongerEachTime(t *testing.T) {
	t.Parallel()
	s := New(natstest.Start(t).JetStream(t), Config{Service: "shop", Replicas: 1}, quiet)
	var spans []time.Duration
	refused := errors.New("refused")
	s.Open(t.Context(), Opening{
		Persist: func(ctx context.Context, what string, try func(context.Context) error) error {
			if what != "stream SHOP_RETRY" {
				return nil
			}
			for range 5 {
				if err := try(ctx); !errors.Is(err, refused) {
					t.Error(err)
				}
			}
			return nil
		},
		Attempt: func(ctx context.Context, _ func(context.Context) error) error {
			end, _ := ctx.Deadline()
			spans = append(spans, time.Until(end).Round(time.Second))
			return refused
		},
	})
	if want := []time.Duration{2 * time.Second, 4 * time.Second, 8 * time.Second, 10 * time.Second, 10 * time.Second}; !slices.Equal(spans, want) {
		t.Errorf("tries last %v, not %v", spans, want)
	}
}

func TestStores_attachMakesNothing(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	s := New(js, Config{Service: "shop", Replicas: 1}, quiet)
	if err := s.Attach(t.Context()); err != nil || s.Retries.Name() != "SHOP_RETRY" || s.Ledgers != nil || len(there(t, js)) > 0 {
		t.Errorf("%v, ledgers %v, streams %q", err, s.Ledgers, there(t, js))
	}
	var tried []string
	if err := errors.Join(s.Open(t.Context(), once(&tried))...); err != nil {
		t.Fatal(err)
	}
	s.Records.Close()
	if err := s.Attach(t.Context()); err != nil || s.Ledgers == nil {
		t.Errorf("%v, ledgers %v", err, s.Ledgers)
	}
}

// A route that is added while relay runs may have dead letters of its own.
func TestStores_widen(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	s := New(js, Config{Service: "shop", Replicas: 1}, quiet)
	have := []string{"", "a.dead"}
	if err := s.Widen(t.Context(), have, []string{"a.dead", ""}); err != nil || len(there(t, js)) > 0 {
		t.Errorf("%v; nothing is new, and it made %q", err, there(t, js))
	}
	if err := s.Widen(t.Context(), have, []string{"b.dead"}); err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), "SHOP_DLQ")
	if err != nil {
		t.Fatal(err)
	}
	for _, subject := range []string{"shop.dlq.>", "a.dead.>", "b.dead.>"} {
		if !slices.Contains(stream.CachedInfo().Config.Subjects, subject) {
			t.Errorf("%s is not among %q", subject, stream.CachedInfo().Config.Subjects)
		}
	}
}

// Before the bucket of the instances is open, none but this one is known.
func TestStores_amongMany(t *testing.T) {
	t.Parallel()
	if d := New(nil, Config{}, quiet).AmongMany(time.Minute); d != time.Minute {
		t.Errorf("%v when no other is known", d)
	}
	for others, want := range map[int]time.Duration{0: 1, 6: 1, 7: 2, 10: 2, 11: 3, 15: 4, 1000: 4} {
		if d := amongMany(time.Minute, others); d != want*time.Minute {
			t.Errorf("%v with %d others, not %v min", d, others, want)
		}
	}
}
