package console

import (
	"context"
	"errors"
	"sync"
	"time"
)

const (
	// fresh is for how long an answer is good for everybody, and askFor how long one question may take.
	fresh  = time.Second
	askFor = 10 * time.Second
)

// errClosed is the answer to a question that the end of the console cut short.
var errClosed = errors.New("relay is stopping")

// shared asks a question at most once a second, however many want to know, and not while nobody does.
type shared[T any] struct {
	ctx context.Context // when it is done, the question under way ends
	ask func(ctx context.Context) (T, error)

	mu     sync.Mutex
	closed bool
	answer T
	err    error
	asked  time.Time     // when the question was put that answer answers
	doing  chan struct{} // closed when the one under way is answered; nil: none is
	at     time.Time     // when that was put
	done   sync.WaitGroup
}

// get returns an answer to a question that was put after since, and within the last second.
func (s *shared[T]) get(ctx context.Context, since time.Time) (T, time.Time, error) {
	for {
		s.mu.Lock()
		now := time.Now()
		if !s.asked.Before(since) && now.Sub(s.asked) < fresh {
			answer, at, err := s.answer, s.asked, s.err
			s.mu.Unlock()
			return answer, at, err
		}
		if s.closed {
			s.mu.Unlock()
			var none T
			return none, time.Time{}, errClosed
		}
		if s.doing == nil {
			s.doing, s.at = make(chan struct{}), now
			s.done.Add(1)
			go s.run(s.at, s.doing)
		}
		doing, at := s.doing, s.at
		s.mu.Unlock()
		select {
		case <-doing:
		case <-ctx.Done():
			var none T
			return none, time.Time{}, ctx.Err()
		}
		s.mu.Lock()
		if s.asked.Equal(at) && !at.Before(since) { // even when it took longer than it is fresh
			answer, err := s.answer, s.err
			s.mu.Unlock()
			return answer, at, err
		}
		s.mu.Unlock()
	}
}

func (s *shared[T]) run(at time.Time, doing chan struct{}) {
	defer s.done.Done()
	ctx, cancel := context.WithTimeout(s.ctx, askFor)
	defer cancel()
	answer, err := s.ask(ctx)
	if err != nil && s.ctx.Err() != nil {
		err = errClosed
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer, s.err, s.asked, s.doing = answer, err, at, nil
	close(doing)
}

// close lets no question begin any more, and waits for the one under way, which s.ctx has to end.
func (s *shared[T]) close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.done.Wait()
}
