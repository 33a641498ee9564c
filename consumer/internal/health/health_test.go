package health

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// A durable that is gone stays so, with since when, until another source takes its place.
func TestHealth_lost(t *testing.T) {
	t.Parallel()
	var h Health
	if h.Reason() != nil || h.Stops() || h.IsLost() || !h.LostSince().IsZero() {
		t.Error("something is wrong with a durable of which nothing is known")
	}
	gone := errors.New("durable a was deleted")
	if !h.Lose(gone) || h.Lose(gone) {
		t.Error("the first word is not told from later ones")
	}
	if !errors.Is(h.Reason(), gone) || !h.Stops() || !h.IsLost() || h.LostSince().IsZero() {
		t.Errorf("lost: %v", h.Reason())
	}
	other := errors.New("made anew")
	if h.StayLost(other); !errors.Is(h.Reason(), other) {
		t.Errorf("lost: %v", h.Reason())
	}
	if h.MerelyEdited() {
		t.Error("a lost durable is merely edited")
	}
}

// What stops relay is told from what only makes it slower, and said with since when.
func TestHealth_edits(t *testing.T) {
	t.Parallel()
	var h Health
	until := time.Now().Add(time.Hour)
	for i, c := range []struct {
		edits                                   Edits
		changed, stops, edited, merely, bounded bool
		text                                    string
	}{
		{Edits{}, false, false, false, false, false, ""},
		{Edits{Slow: []string{"max_ack_pending is 10, not 100"}}, true, false, false, true, false, "max_ack_pending is 10, not 100, since"},
		{Edits{Slow: []string{"max_ack_pending is 10, not 100"}, Paused: until}, false, false, false, true, false, "max_ack_pending"},
		{Edits{Stop: []string{"filter_subjects is a", "max_deliver is 3"}}, true, true, true, false, true, "filter_subjects is a and max_deliver is 3; nothing is pulled since"},
		{Edits{Stop: []string{"backoff is [1s]"}}, true, true, true, false, true, "backoff"},
		{Edits{}, true, false, false, false, false, ""},
	} {
		_, changed := h.Edit(c.edits)
		if changed != c.changed || h.Stops() != c.stops || h.IsEdited() != c.edited || h.MerelyEdited() != c.merely || h.IsBounded() != c.bounded || !h.PausedUntil().Equal(c.edits.Paused) {
			t.Errorf("%d: changed %v, stops %v, edited %v, merely %v, bounded %v", i, changed, h.Stops(), h.IsEdited(), h.MerelyEdited(), h.IsBounded())
		}
		if err := h.Reason(); (err != nil) != (c.text != "") || err != nil && !strings.Contains(err.Error(), c.text) {
			t.Errorf("%d: %v, want %q", i, err, c.text)
		}
	}
}

// One stall is mended by pulling anew; the second within a minute is said. A server that does not answer is said after a while.
func TestHealth_stallsAndSilence(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var h Health
		h.Stalled(time.Now())
		if h.Reason() != nil {
			t.Error("one stall is said")
		}
		h.Stalled(time.Now())
		if h.Reason() == nil {
			t.Error("two stalls are not said")
		}
		time.Sleep(2 * time.Minute)
		if h.Stalled(time.Now()); h.Reason() != nil {
			t.Error("a stall of before counts")
		}
		away := errors.New("no answer")
		asked := time.Now()
		h.Heard(away, asked)
		if h.Silent(time.Now()) != nil {
			t.Error("an election is said")
		}
		time.Sleep(SilentFor)
		h.Heard(away, time.Now())
		if err := h.Silent(time.Now()); !errors.Is(err, away) || !strings.Contains(err.Error(), asked.UTC().Format(time.RFC3339)) {
			t.Errorf("silent: %v", err)
		}
		if h.Heard(nil, time.Now()); h.Silent(time.Now()) != nil {
			t.Error("an answer does not end it")
		}
	})
}

func TestHealth_isNews(t *testing.T) {
	t.Parallel()
	var h Health
	for i, c := range []struct {
		config jetstream.ConsumerConfig
		news   bool
	}{
		{jetstream.ConsumerConfig{Durable: "a"}, false},
		{jetstream.ConsumerConfig{Durable: "a"}, false},
		{jetstream.ConsumerConfig{Durable: "a", MaxDeliver: 3}, true},
		{jetstream.ConsumerConfig{Durable: "a", MaxDeliver: 3}, false},
	} {
		if got := h.IsNews(c.config); got != c.news {
			t.Errorf("%d: news %v, want %v", i, got, c.news)
		}
	}
}

// A durable that is replicated needs most of its replicas; how long that has not been so is known by those that were not heard of.
func TestQuorum(t *testing.T) {
	t.Parallel()
	peer := func(active time.Duration, offline bool) *jetstream.PeerInfo {
		return &jetstream.PeerInfo{Active: active, Offline: offline}
	}
	for name, c := range map[string]struct {
		of    *jetstream.ClusterInfo
		quiet time.Duration
		ok    bool
	}{
		"one server":       {nil, 0, true},
		"no leader":        {&jetstream.ClusterInfo{}, 0, false},
		"all are there":    {&jetstream.ClusterInfo{Leader: "a", Replicas: []*jetstream.PeerInfo{peer(0, false), peer(time.Second, false)}}, 0, true},
		"one is missing":   {&jetstream.ClusterInfo{Leader: "a", Replicas: []*jetstream.PeerInfo{peer(0, false), peer(time.Minute, false)}}, 0, true},
		"both are missing": {&jetstream.ClusterInfo{Leader: "a", Replicas: []*jetstream.PeerInfo{peer(5*time.Second, false), peer(9*time.Second, false)}}, 9 * time.Second, false},
		"both are offline": {&jetstream.ClusterInfo{Leader: "a", Replicas: []*jetstream.PeerInfo{peer(0, true), peer(0, true)}}, 0, false},
		"the other of two": {&jetstream.ClusterInfo{Leader: "a", Replicas: []*jetstream.PeerInfo{peer(7*time.Second, false)}}, 7 * time.Second, false},
	} {
		if quiet, err := Quorum(c.of); (err == nil) != c.ok || quiet != c.quiet {
			t.Errorf("%s: %v, %v", name, quiet, err)
		}
	}
}
