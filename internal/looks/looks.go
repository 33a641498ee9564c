// Package looks shares the answers of a server about streams. Many parts of relay look at the same few streams again and again: the watchdog of each
// durable, those who count what is parked, who look for what is for no route, who compare the settings. They share one answer while it is
// young enough for them.
package looks

import (
	"context"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/transient"
)

// ShareFor is how old an answer may be for who looks every few seconds.
const ShareFor = 2 * time.Second

// Streams are the latest answers. Make it with [New].
type Streams struct {
	js jetstream.JetStream

	mu   sync.Mutex
	list map[string]*askedStream
}

// New returns one without answers.
func New(js jetstream.JetStream) *Streams {
	return &Streams{js: js, list: make(map[string]*askedStream)}
}

type askedStream struct {
	turn chan struct{} // held by who asks, and by who looks
	last Look
}

// Look is what the server said of a stream. It is shared: nobody may call Info of the stream.
type Look struct {
	jetstream.Stream
	Asked time.Time // the answer is not older
}

// Get asks the server about a stream, unless somebody did within age. With an age of 0 the answer is not older than the call.
func (s *Streams) Get(ctx context.Context, name string, age time.Duration) (Look, error) {
	oldest := time.Now().Add(-age)
	s.mu.Lock()
	a := s.list[name]
	if a == nil {
		a = &askedStream{turn: make(chan struct{}, 1)}
		s.list[name] = a
	}
	s.mu.Unlock()
	select {
	case a.turn <- struct{}{}:
		defer func() { <-a.turn }()
	case <-ctx.Done():
		return Look{}, ctx.Err()
	}
	if a.last.Stream != nil && !a.last.Asked.Before(oldest) {
		return a.last, nil
	}
	now := time.Now()
	stream, err := transient.Ask(ctx, s.js.Conn(), func(ctx context.Context) (jetstream.Stream, error) { return s.js.Stream(ctx, name) })
	if err != nil {
		a.last = Look{}
		return Look{}, err
	}
	a.last = Look{stream, now}
	return a.last, nil
}

// Content is what a stream holds. While it is the same, nothing was stored, settled or removed there.
type Content struct {
	created           time.Time
	first, last, msgs uint64
	deleted           int
}

// ContentOf is what the stream held when the server said so.
func ContentOf(info *jetstream.StreamInfo) Content {
	st := info.State
	return Content{info.Created, st.FirstSeq, st.LastSeq, st.Msgs, st.NumDeleted}
}

// Gone is how many messages there were in a stream and are not there any more.
func Gone(st jetstream.StreamState) uint64 { return st.LastSeq - min(st.LastSeq, st.Msgs) }
