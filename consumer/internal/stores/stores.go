package stores

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/consumer/internal/suspects"
	"github.com/relaymq/relay/internal/archive"
	"github.com/relaymq/relay/internal/audit"
	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/events"
	"github.com/relaymq/relay/internal/ownstream"
	"github.com/relaymq/relay/internal/retry"
	"github.com/relaymq/relay/internal/transient"
)

const (
	// firstTry bounds the first try to make something, and later ones may take longer: of instances that make the same stream of a cluster at once, one
	// gets an answer, and the others find it there the next time.
	firstTry = 2 * time.Second
	// longestTry bounds all of them.
	longestTry = 10 * time.Second
)

// Stores are relay's own streams and buckets. Make them with [New].
type Stores struct {
	Config
	js  jetstream.JetStream
	log *slog.Logger

	// Set by Open; nil before. What reads them begins after it.
	Retries *retry.Stream
	Records *retry.Bucket // of attempts
	Ledgers *audit.Book
	Dead    *dlq.Store
	// Lives are nil until the bucket of the instances is open. They may be read at any time.
	Lives atomic.Pointer[suspects.Lives]
}

// New asks nobody: the names are known, and nothing is open.
func New(js jetstream.JetStream, cfg Config, log *slog.Logger) *Stores {
	return &Stores{Config: cfg, js: js, log: log}
}

// Opening says how they are opened.
type Opening struct {
	// Persist tries until that succeeds, fails for a reason that does not pass by itself, or ctx is done.
	Persist func(ctx context.Context, what string, try func(context.Context) error) error
	// Attempt bounds a try, and ends it when the server says that something is not permitted.
	Attempt func(ctx context.Context, try func(context.Context) error) error
	// DeadPrefixes begin the subjects of dead letters of routes; an empty one is that of the service.
	DeadPrefixes []string
	Began        time.Time // when this process began
	// Asked answers what another process wants to know.
	Asked func(question []byte) (answer []byte)
}

// Open makes what is missing, sets right what differs, and opens all, side by side. It returns what went wrong with each of them.
func (s *Stores) Open(ctx context.Context, o Opening) (faults []error) {
	parts := s.parts(o)
	faults = make([]error, len(parts))
	var opening sync.WaitGroup
	for i, p := range parts {
		opening.Go(func() {
			span := firstTry
			faults[i] = o.Persist(ctx, p.name, func(ctx context.Context) error {
				ctx, cancel := context.WithTimeout(ctx, span)
				defer cancel()
				span = min(2*span, longestTry)
				return transient.Made(o.Attempt(ctx, p.open))
			})
		})
	}
	opening.Wait()
	return faults
}

// part is what is opened by itself.
type part struct {
	name string
	open func(context.Context) error
}

func (s *Stores) parts(o Opening) []part {
	parts := []part{
		{"stream " + s.RetryStream(), func(ctx context.Context) (err error) {
			s.Retries, err = retry.OpenStream(ctx, s.js, s.Service, s.RetryStream(), s.Replicas)
			return err
		}},
		{"bucket " + s.AttemptsBucket(), func(ctx context.Context) (err error) {
			s.Records, err = retry.OpenBucket(ctx, s.js, s.AttemptsBucket(), s.Replicas)
			return err
		}},
		{"bucket " + audit.Bucket(s.Service), func(ctx context.Context) (err error) {
			s.Ledgers, err = audit.Open(ctx, s.js, s.Service, s.Replicas)
			return err
		}},
		{"bucket " + s.InstancesBucket(), func(ctx context.Context) error {
			l, err := suspects.Open(ctx, suspects.Config{
				Conn: s.js.Conn(), JS: s.js, Service: s.Service, Instance: s.Instance, Began: o.Began, Replicas: s.Replicas, Logger: s.log, Asked: o.Asked,
			})
			if err == nil {
				s.Lives.Store(l)
			}
			return err
		}},
		{"the dead letters", func(ctx context.Context) (err error) {
			s.Dead, err = dlq.Open(ctx, s.js, s.DeadLetters(o.DeadPrefixes, s.log))
			return err
		}},
	}
	if s.Events != nil {
		parts = append(parts, part{"stream " + events.StreamName(s.Service), func(ctx context.Context) error {
			return s.ensure(ctx, s.eventsStream(), "events.store")
		}})
	}
	if s.Archive != nil {
		parts = append(parts, part{"stream " + archive.StreamName(s.Service), s.EnsureArchive})
	}
	return parts
}

// EnsureArchive makes the stream of the archive, or sets it right.
func (s *Stores) EnsureArchive(ctx context.Context) error {
	return s.ensure(ctx, s.archiveStream(), "archive.outcomes")
}

// ensure makes a stream that a key of the configuration asks for, or sets it right.
func (s *Stores) ensure(ctx context.Context, want jetstream.StreamConfig, key string) error {
	if _, err := ownstream.Ensure(ctx, s.js, want, s.log); err != nil {
		return fmt.Errorf("stream %s, for %s: %w", want.Name, key, err)
	}
	return nil
}

// Attach is for who only looks: it makes nothing. The retry stream is known by its name, and ledgers are nil when there are none.
func (s *Stores) Attach(ctx context.Context) (err error) {
	s.Retries = retry.NamedStream(s.js, s.Service, s.RetryStream())
	s.Ledgers, err = audit.Attach(ctx, s.js, s.Service)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		return nil
	}
	return err
}

// Widen has the dead letters take those of further routes. What is open stays as it is.
func (s *Stores) Widen(ctx context.Context, have, more []string) error {
	all := s.DeadLetters(append(have[:len(have):len(have)], more...), s.log)
	if len(all.Prefixes) == len(s.DeadLetters(have, s.log).Prefixes) {
		return nil
	}
	_, err := dlq.Open(ctx, s.js, all)
	return err
}

// AmongMany is a period of looks that every instance makes, with the instances that there are.
func (s *Stores) AmongMany(period time.Duration) time.Duration {
	others := 0
	if l := s.Lives.Load(); l != nil {
		others = l.Others()
	}
	return amongMany(period, others)
}

// amongMany is longer from eight instances on, up to four times, so that the server is not asked in proportion to them.
func amongMany(period time.Duration, others int) time.Duration {
	return period * time.Duration(min(max(1, (others+1)/4), 4))
}
