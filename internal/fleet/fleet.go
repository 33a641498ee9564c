package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/relaymq/relay/internal/ownstream"
	"github.com/relaymq/relay/internal/transient"
)

// Config makes a Fleet.
type Config struct {
	Service  string
	Domain   string // of JetStream, or empty
	Replicas int
	// Instance and Version are told to the others.
	Instance, Version string
	// Lease is after what time without a confirmed write a session ends: whole seconds, since the server cuts TTLs to these. Zero
	// means 2s, below that is an error: a pause of the scheduler would end sessions.
	Lease time.Duration
	// State is what else the others are told with each write of the session. It must be JSON and may be nil.
	State func() json.RawMessage
	// Logger may be nil.
	Logger *slog.Logger
}

// MinLease is the shortest lease, and the default.
const MinLease = 2 * time.Second

// ErrLost is the cause that ends the context of whoever worked under a session or a claim that is no longer this instance's.
var ErrLost = errors.New("the lease of this instance has expired: the bucket of the fleet did not confirm its renewal in time")

// Fleet is this instance's part in the fleet. Its methods are safe for concurrent use.
type Fleet struct {
	cfg     Config
	js      jetstream.JetStream
	kv      jetstream.KeyValue
	prefix  string // of the subjects of the bucket's keys
	inbox   string // for words of the others
	guard   time.Duration
	now     func() time.Duration // time since some moment, which also goes on while the machine sleeps
	renewal chan struct{}        // a value asks for a write at once
	rewatch chan struct{}        // a value asks for a new watch

	mu      sync.Mutex
	view    view
	session *session // nil: none at the moment
	former  []string // the last of its sessions that are over
	changed chan struct{}
	trouble error // why there is no session
	since   time.Time
	created time.Time // of the bucket
	anew    time.Time // nothing is claimed before, and no part of a limit used
	wishes  wishes
	rests   map[string]rest // resources that are left to the others
}

// Stream is what the stream of the bucket has to be.
func Stream(service string, replicas int) jetstream.StreamConfig {
	c := ownstream.Bucket(Bucket(service), replicas, 0)
	c.AllowMsgTTL = true
	c.SubjectDeleteMarkerTTL = time.Hour // so that watchers hear of sessions that ended
	return c
}

// Bucket is the name of the bucket of a service.
func Bucket(service string) string { return strings.ToUpper(service) + "_FLEET" }

// Join makes the bucket if it is not there, and a Fleet that takes part once [Fleet.Run] runs.
func Join(ctx context.Context, js jetstream.JetStream, cfg Config) (*Fleet, error) {
	cfg.Lease = cmp.Or(cfg.Lease, MinLease)
	if cfg.Lease < MinLease || cfg.Lease%time.Second != 0 {
		return nil, fmt.Errorf("fleet.lease: must be whole seconds, at least %v (got %v)", MinLease, cfg.Lease)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	created, err := ensure(ctx, js, cfg)
	if err != nil {
		return nil, err
	}
	kv, err := js.KeyValue(ctx, Bucket(cfg.Service))
	if err != nil {
		return nil, fmt.Errorf("bucket %s: %w", Bucket(cfg.Service), transient.Made(err))
	}
	prefix := "$KV." + Bucket(cfg.Service) + "."
	if cfg.Domain != "" {
		prefix = "$JS." + cfg.Domain + ".API." + prefix
	}
	return &Fleet{
		cfg: cfg, js: js, kv: kv, prefix: prefix, guard: max(cfg.Lease/8, 250*time.Millisecond), now: sinceBoot,
		renewal: make(chan struct{}, 1), rewatch: make(chan struct{}, 1), changed: make(chan struct{}), view: newView(), since: time.Now(), created: created,
		wishes: newWishes(), inbox: js.Conn().NewInbox(),
	}, nil
}

// ensure makes the bucket if it is not there, and returns when it was made.
func ensure(ctx context.Context, js jetstream.JetStream, cfg Config) (created time.Time, err error) {
	c := Stream(cfg.Service, cfg.Replicas)
	// A bucket that was deleted and is made anew must not give fencing tokens that were given before. Less is written than once in a
	// millisecond.
	c.FirstSeq = uint64(time.Now().UnixMilli())
	stream, err := ownstream.Ensure(ctx, js, c, cfg.Logger)
	if err != nil {
		return time.Time{}, fmt.Errorf("bucket %s: %w", Bucket(cfg.Service), transient.Made(err))
	}
	return stream.CachedInfo().Created, nil
}

// mend makes a bucket again that was deleted. Whoever held something by the old one may not have noticed yet: nothing is claimed in the new one
// for as long as a lease lasts.
func (f *Fleet) mend(ctx context.Context, span time.Duration) {
	call, cancel := context.WithTimeout(ctx, span)
	defer cancel()
	created, err := ensure(call, f.js, f.cfg)
	if err != nil {
		return // said by the next write
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !created.Equal(f.created) {
		f.created, f.anew = created, time.Now().Add(f.cfg.Lease)
		f.view.whole = false // it tells of the old one
		f.watchAnew()
		f.cfg.Logger.Warn("the bucket of the fleet was deleted and created again", "bucket", Bucket(f.cfg.Service))
	}
}

// Run keeps a session until ctx is done, gives it back then, and returns when both are done. When a session is lost, a new one is made.
func (f *Fleet) Run(ctx context.Context) {
	if words, err := f.js.Conn().Subscribe(f.inbox, f.hear); err != nil {
		f.cfg.Logger.Warn("cannot subscribe to what other instances ask of limits, so shares of limits move slowly between instances", "error", err)
	} else {
		defer words.Unsubscribe() //nolint:errcheck // the connection is gone
	}
	watched := make(chan struct{})
	watching, stop := context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		defer close(watched)
		f.watch(watching)
	}()
	var looks transient.Spans
	for ctx.Err() == nil {
		if f.keep(ctx) {
			looks = transient.Spans{}
		}
		select {
		case <-ctx.Done():
		case <-time.After(f.cfg.Lease / 8):
			f.mend(ctx, looks.Next(f.cfg.Lease/8, f.cfg.Lease))
		}
	}
	stop()
	<-watched
}

// Renew writes the session at once, so that the others learn of a changed state.
func (f *Fleet) Renew() {
	select {
	case f.renewal <- struct{}{}:
	default:
	}
}

// Valid tells whether this instance has a session that no other can have outlived. It costs a lock and a look at the clock.
func (f *Fleet) Valid() bool {
	s := f.current()
	return s != nil && s.valid()
}

// Trouble says why this instance has no session, and since when; nil when it has one.
func (f *Fleet) Trouble() (since time.Time, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.session != nil && f.session.valid() {
		return f.since, nil
	}
	return f.since, cmp.Or(f.trouble, ErrLost)
}

func (f *Fleet) current() *session {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.session
}

// signal wakes everybody who waits for a change. f.mu is held.
func (f *Fleet) signal() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// Changed is closed when a session or a claim changes.
func (f *Fleet) Changed() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changed
}

func newID() string { return nuid.Next() }
