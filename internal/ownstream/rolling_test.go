package ownstream_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/natstest"
	"github.com/relaymq/relay/internal/ownstream"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, natstest.Leaks()...) }

// In a rolling change an instance with a lower dlq.max_age and max_bytes starts while one with the old values still runs: that one took
// the change for somebody's edit of the stream, and undid it. An edit by somebody is still set back.
func TestCheck_rollingChangeOfLimitsIsNotUndone(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	log := slog.New(slog.DiscardHandler)
	stream := func(age time.Duration, bytes int64) jetstream.StreamConfig {
		return dlq.Config{Service: "relay", Replicas: 1, MaxAge: age, MaxBytes: bytes}.Streams()[0]
	}
	older, newer := stream(48*time.Hour, 2<<20), stream(24*time.Hour, 1<<20)
	has := func(what string, want jetstream.StreamConfig) {
		t.Helper()
		s, err := js.Stream(t.Context(), want.Name)
		if err != nil {
			t.Fatal(err)
		}
		if c := s.CachedInfo().Config; c.MaxAge != want.MaxAge || c.MaxBytes != want.MaxBytes {
			t.Errorf("%s: max_age is %v and max_bytes %d, want %v and %d", what, c.MaxAge, c.MaxBytes, want.MaxAge, want.MaxBytes)
		}
	}
	check := func(want jetstream.StreamConfig) {
		t.Helper()
		if _, err := ownstream.Check(t.Context(), js, want, ownstream.Running, log); err != nil {
			t.Fatal(err)
		}
	}
	for _, start := range []jetstream.StreamConfig{older, newer} {
		if _, err := ownstream.Ensure(t.Context(), js, start, log); err != nil {
			t.Fatal(err)
		}
		has("after a start", start)
	}
	check(older)
	has("after a look of the older instance", newer)
	s, err := js.Stream(t.Context(), newer.Name)
	if err != nil {
		t.Fatal(err)
	}
	edited := s.CachedInfo().Config
	edited.MaxAge, edited.Duplicates = time.Hour, time.Minute
	if _, err := js.UpdateStream(t.Context(), edited); err != nil {
		t.Fatal(err)
	}
	check(newer)
	has("after an edit by somebody", newer)
}
