// Package health keeps what is wrong with a durable while it is used: it is gone, it stalls, it was edited, nobody answers for it, or what it delivers
// comes too late.
package health

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/relaymq/relay/internal/plain"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/provision"
)

// SilentFor is how long the server may not answer for a durable: elections take a few seconds.
const SilentFor = 5 * time.Second

// Edits are what differs on a durable while it is used.
type Edits struct {
	Stop   []string  // under these nothing may be pulled
	Slow   []string  // under these it goes on, though not as well as it should
	Paused time.Time // by the server, until then; zero: it is not
}

// Health is what keeps a durable from giving messages, as far as it is known. The zero value is that of one that gives them.
type Health struct {
	mu       sync.Mutex
	silence  silence
	lost     error // why nothing can be pulled
	lostAt   time.Time
	rebuilt  time.Time
	stalls   int // within a minute
	edits    Edits
	editedAt time.Time
	seen     *jetstream.ConsumerConfig // when the session last asked
}

// Reason is why the durable gives nothing, but that nobody answers for it.
func (h *Health) Reason() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.lost != nil:
		return h.lost
	case h.stalls > 1 && time.Since(h.rebuilt) < time.Minute:
		return errors.New("stalled twice within a minute")
	}
	return h.edited()
}

// Stops tells whether nothing may be pulled.
func (h *Health) Stops() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lost != nil || len(h.edits.Stop) > 0
}

// Lose notes that the durable is gone, and why. It returns false if that was known.
func (h *Health) Lose(err error) (news bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if news = h.lost == nil; news {
		h.lostAt = time.Now()
	}
	h.lost = err
	return news
}

// IsLost tells whether the durable is gone.
func (h *Health) IsLost() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lost != nil
}

// Stalled notes that the durable gave nothing although it had something to give.
func (h *Health) Stalled(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if now.Sub(h.rebuilt) > time.Minute {
		h.stalls = 0
	}
	h.stalls++
	h.rebuilt = now
}

// Edit notes what differs, and returns what did before, and whether that is another thing.
func (h *Health) Edit(e Edits) (was Edits, changed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	was = h.edits
	h.edits = e
	if slices.Equal(was.Stop, e.Stop) && slices.Equal(was.Slow, e.Slow) {
		return was, false
	}
	h.editedAt = time.Now()
	return was, true
}

// edited is what is wrong with how the durable was edited. The lock is held for it.
func (h *Health) edited() error {
	since := h.editedAt.UTC().Format(time.RFC3339)
	switch {
	case len(h.edits.Stop) > 0:
		return fmt.Errorf("edited while relay runs: %s; nothing is pulled since %s, until the edit is undone or relay is restarted with --adopt", plain.And(h.edits.Stop), since)
	case len(h.edits.Slow) > 0:
		return fmt.Errorf("edited while relay runs: %s, since %s; undo the edit, or restart relay with --adopt", plain.And(h.edits.Slow), since)
	}
	return nil
}

// IsEdited tells whether messages may be lost or handled wrongly.
func (h *Health) IsEdited() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.edits.Stop) > 0
}

// MerelyEdited tells whether somebody has edited the durable in a way under which relay goes on.
func (h *Health) MerelyEdited() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lost == nil && len(h.edits.Stop) == 0 && h.edited() != nil
}

// PausedUntil is until when somebody has the server deliver nothing on the durable; zero if nobody does.
func (h *Health) PausedUntil() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.edits.Paused
}

// IsNews tells whether the configuration is another one than when this was last asked.
func (h *Health) IsNews(config jetstream.ConsumerConfig) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	was := h.seen
	h.seen = &config
	return was != nil && !provision.Same(*was, config)
}

// IsBounded tells whether giving a message back may be the end of it.
func (h *Health) IsBounded() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.ContainsFunc(h.edits.Stop, func(text string) bool {
		return strings.HasPrefix(text, "max_deliver ") || strings.HasPrefix(text, "backoff ")
	})
}

// LostSince is since when nothing can be pulled; zero when it can.
func (h *Health) LostSince() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lostAt
}

// StayLost notes why a durable that is there again cannot be used.
func (h *Health) StayLost(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lost = err
}

// silence is since when the server has not answered for a durable, or said that it has no leader or no quorum. The
// lock of health is held for it.
type silence struct {
	since time.Time
	err   error
}

// Heard notes what became of a question about the durable that was asked then.
func (h *Health) Heard(err error, asked time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case err == nil:
		h.silence = silence{}
	case h.silence.since.IsZero():
		h.silence = silence{asked, err}
	default:
		h.silence.err = err
	}
}

// Silent is the silence, once it has lasted.
func (h *Health) Silent(now time.Time) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.silence.reason(now)
}

// reason is the silence, once it has lasted.
func (s silence) reason(now time.Time) error {
	if s.since.IsZero() || now.Sub(s.since) < SilentFor {
		return nil
	}
	return fmt.Errorf("it cannot be used since %s: %w", s.since.UTC().Format(time.RFC3339), s.err)
}

// heardEvery is how often the leader of a durable must hear of a replica, several times what it does.
const heardEvery = 4 * time.Second

// Quorum says why a durable that is replicated can store nothing, and for how long that has been so at least. A leader that has
// lost its followers answers for many seconds before it notices (nats-server, raft.go, lostQuorumInterval); it hears of healthy
// ones every second.
func Quorum(c *jetstream.ClusterInfo) (quiet time.Duration, err error) {
	if c == nil {
		return 0, nil
	}
	if c.Leader == "" {
		return 0, errors.New("it has no leader")
	}
	there := 1
	for _, p := range c.Replicas {
		if p.Offline || p.Active > heardEvery {
			quiet = max(quiet, p.Active)
		} else {
			there++
		}
	}
	if all := 1 + len(c.Replicas); 2*there <= all {
		return quiet, fmt.Errorf("no quorum: %d of %d replicas are available", there, all)
	}
	return 0, nil
}
