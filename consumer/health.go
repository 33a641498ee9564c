package consumer

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/provision"
)

// health is what keeps a durable from giving messages, as far as it is known: it is gone, it stalls, it was edited, or nobody answers for it.
type health struct {
	mu       sync.Mutex
	silence  silence
	lost     error // why nothing can be pulled
	lostAt   time.Time
	rebuilt  time.Time
	stalls   int // within a minute
	edits    edits
	editedAt time.Time
	seen     *jetstream.ConsumerConfig // when the session last asked
}

// reason is why the durable gives nothing, but that nobody answers for it.
func (h *health) reason() error {
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

// stops tells whether nothing may be pulled.
func (h *health) stops() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lost != nil || len(h.edits.stop) > 0
}

// lose notes that the durable is gone, and why. It returns false if that was known.
func (h *health) lose(err error) (news bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if news = h.lost == nil; news {
		h.lostAt = time.Now()
	}
	h.lost = err
	return news
}

func (h *health) isLost() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lost != nil
}

// stalled notes that the durable gave nothing although it had something to give.
func (h *health) stalled(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if now.Sub(h.rebuilt) > time.Minute {
		h.stalls = 0
	}
	h.stalls++
	h.rebuilt = now
}

// edit notes what differs, and returns what did before, and whether that is another thing.
func (h *health) edit(e edits) (was edits, changed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	was = h.edits
	h.edits = e
	if slices.Equal(was.stop, e.stop) && slices.Equal(was.slow, e.slow) {
		return was, false
	}
	h.editedAt = time.Now()
	return was, true
}

// edited is what is wrong with how the durable was edited. The lock is held for it.
func (h *health) edited() error {
	since := h.editedAt.UTC().Format(time.RFC3339)
	switch {
	case len(h.edits.stop) > 0:
		return fmt.Errorf("edited while relay runs: %s; nothing is pulled since %s, until it is changed back or relay restarted with --adopt", joinAnd(h.edits.stop), since)
	case len(h.edits.slow) > 0:
		return fmt.Errorf("edited while relay runs: %s, since %s; change it back, or restart relay with --adopt", joinAnd(h.edits.slow), since)
	}
	return nil
}

// isEdited tells whether messages may be lost or handled wrongly.
func (h *health) isEdited() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.edits.stop) > 0
}

// merelyEdited tells whether somebody has edited the durable in a way under which relay goes on.
func (h *health) merelyEdited() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lost == nil && len(h.edits.stop) == 0 && h.edited() != nil
}

// pausedUntil is until when somebody has the server deliver nothing on the durable; zero if nobody does.
func (h *health) pausedUntil() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.edits.paused
}

// isNews tells whether the configuration is another one than when this was last asked.
func (h *health) isNews(config jetstream.ConsumerConfig) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	was := h.seen
	h.seen = &config
	return was != nil && !provision.Same(*was, config)
}

// isBounded tells whether giving a message back may be the end of it.
func (h *health) isBounded() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.ContainsFunc(h.edits.stop, func(text string) bool {
		return strings.HasPrefix(text, "max_deliver ") || strings.HasPrefix(text, "backoff ")
	})
}

// lostSince is since when nothing can be pulled; zero when it can.
func (h *health) lostSince() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lostAt
}

// stayLost notes why a durable that is there again cannot be used.
func (h *health) stayLost(durable string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var differs *DurableDiffers
	if errors.As(err, &differs) {
		h.lost = fmt.Errorf("durable %s was deleted and made anew: %w", durable, err)
	}
}

// silence is since when the server has not answered for a durable, or said that it has no leader or no quorum. The
// lock of health is held for it.
type silence struct {
	since time.Time
	err   error
}

// heard notes what became of a question about the durable that was asked then.
func (h *health) heard(err error, asked time.Time) {
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

// silent is the silence, once it has lasted.
func (h *health) silent(now time.Time) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.silence.reason(now)
}

// reason is the silence, once it has lasted.
func (s silence) reason(now time.Time) error {
	if s.since.IsZero() || now.Sub(s.since) < silentFor {
		return nil
	}
	return fmt.Errorf("it cannot be used since %s: %w", s.since.UTC().Format(time.RFC3339), s.err)
}
