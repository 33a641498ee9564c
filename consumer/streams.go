package consumer

import (
	"context"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Many parts look at the same few streams again and again: the watchdog of each durable, those who count what is parked, who look for what is
// for no route, who compare the settings. They share one answer of the server while it is young enough for them.

// shareFor is how old an answer may be for who looks every few seconds.
const shareFor = 2 * time.Second

// amongMany is a period of looks that every instance makes, with many instances: from eight on it is longer, up to four times, so that the server
// is not asked in proportion to them.
func (r *Relay) amongMany(period time.Duration) time.Duration {
	others := 0
	if l := r.lives.Load(); l != nil {
		others = l.Others()
	}
	return period * time.Duration(min(max(1, (others+1)/4), 4))
}

// streams are the latest answers.
type streams struct {
	mu   sync.Mutex
	list map[string]*askedStream
}

type askedStream struct {
	turn chan struct{} // held by who asks, and by who looks
	last streamLook
}

// streamLook is what the server said of a stream. It is shared: nobody may call Info of the stream.
type streamLook struct {
	jetstream.Stream
	asked time.Time // the answer is not older
}

// stream asks the server about a stream, unless somebody did within age. With an age of 0 the answer is not older than the call.
func (r *Relay) stream(ctx context.Context, name string, age time.Duration) (streamLook, error) {
	oldest := time.Now().Add(-age)
	r.streams.mu.Lock()
	a := r.streams.list[name]
	if a == nil {
		if r.streams.list == nil {
			r.streams.list = make(map[string]*askedStream)
		}
		a = &askedStream{turn: make(chan struct{}, 1)}
		r.streams.list[name] = a
	}
	r.streams.mu.Unlock()
	select {
	case a.turn <- struct{}{}:
		defer func() { <-a.turn }()
	case <-ctx.Done():
		return streamLook{}, ctx.Err()
	}
	if a.last.Stream != nil && !a.last.asked.Before(oldest) {
		return a.last, nil
	}
	now := time.Now()
	stream, err := r.js.Stream(ctx, name)
	if err != nil {
		a.last = streamLook{}
		return streamLook{}, err
	}
	a.last = streamLook{stream, now}
	return a.last, nil
}

// content is what a stream holds. While it is the same, nothing was stored, settled or removed there.
type content struct {
	created           time.Time
	first, last, msgs uint64
	deleted           int
}

func contentOf(info *jetstream.StreamInfo) content {
	st := info.State
	return content{info.Created, st.FirstSeq, st.LastSeq, st.Msgs, st.NumDeleted}
}
