package dlq

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/ownstream"
	"github.com/relaymq/relay/internal/subject"
	"github.com/relaymq/relay/internal/transient"
)

// Config is where and how dead letters are kept.
type Config struct {
	// Service begins the names: <SERVICE>_DLQ, <SERVICE>_DLQ_BODIES, <service>.dlq.>. Letters, digits, - and _. Empty
	// means relay.
	Service string
	// Replicas of the stream and the bucket. Zero means 1. More of them, of a stream that exists, stay.
	Replicas int
	// MaxAge removes older entries. Zero means never.
	MaxAge time.Duration
	// MaxBytes bounds the stream, and the bucket for large bodies once more. Zero means no bound.
	MaxBytes int64
	// MaxMsgs bounds the number of entries. Zero means no bound.
	MaxMsgs int64
	// OnFull is block (default): new entries are refused and the messages wait in their own stream, or drop_oldest.
	OnFull string
	// Prefixes of dead-letter subjects beside <service>.dlq. They must not overlap each other.
	Prefixes []string
	// Instance is written into entries that name none.
	Instance string
	// Logger is for what an operator should know. Nil means none.
	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	c.Service = cmp.Or(c.Service, "relay")
	c.Replicas = cmp.Or(c.Replicas, 1)
	c.OnFull = cmp.Or(c.OnFull, OnFullBlock)
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	return c
}

// The values of [Config.OnFull].
const (
	OnFullBlock      = "block"
	OnFullDropOldest = "drop_oldest"
)

var serviceRule = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// Validate returns every fault, each beginning with the name of its field in a configuration file.
func (c Config) Validate() error {
	c = c.withDefaults()
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if !serviceRule.MatchString(c.Service) {
		fault("service: must be 1 to 64 letters, digits, - or _ (got %q)", c.Service)
	}
	if c.Replicas < 1 || c.Replicas > 5 {
		fault("nats.replicas: must be 1 to 5 (got %d)", c.Replicas)
	}
	if c.MaxAge < 0 || c.MaxAge > 0 && c.MaxAge < time.Second {
		fault("dlq.max_age: must be at least 1s, or 0 for no bound (got %v)", c.MaxAge)
	}
	if c.MaxBytes < 0 {
		fault("dlq.max_bytes: must be above 0, or 0 for no bound (got %d)", c.MaxBytes)
	}
	if c.MaxMsgs < 0 {
		fault("dlq.max_msgs: must be above 0, or 0 for no bound (got %d)", c.MaxMsgs)
	}
	if c.OnFull != OnFullBlock && c.OnFull != OnFullDropOldest {
		fault("dlq.on_full: must be %s or %s (got %q)", OnFullBlock, OnFullDropOldest, c.OnFull)
	}
	all := c.prefixes()
	for i, p := range all {
		if err := subject.ValidateLiteral(p + ".x"); err != nil {
			fault("dead_letter.prefix: %w", err)
		}
		for _, other := range all[:i] {
			if subject.Overlaps(p+".>", other+".>") {
				fault("dead_letter.prefix: %q overlaps %q", p, other)
			}
		}
		for _, own := range []string{c.Service + ".park", c.Service + ".due"} {
			if subject.Overlaps(p+".>", own+".>") {
				fault("dead_letter.prefix: %q overlaps %q, which belongs to retries", p, own)
			}
		}
	}
	return errors.Join(errs...)
}

// prefixes are all of them, once each, the default one first.
func (c Config) prefixes() []string {
	all := []string{c.Service + ".dlq"}
	for _, p := range c.Prefixes {
		if !slices.Contains(all, p) {
			all = append(all, p)
		}
	}
	return all
}

// Store is the dead letters of one service. It holds no goroutines and needs no closing. Its methods are safe for
// concurrent use, and block for the server, at most a few seconds each unless they say otherwise.
type Store struct {
	js       jetstream.JetStream
	service  string
	instance string
	log      *slog.Logger
	stream   jetstream.Stream // its cached information is from when it was opened
	timeout  time.Duration    // bounds one exchange with the server, within the caller's context
	grace    time.Duration    // Sweep leaves younger objects alone

	dropOldest bool
	dropped    atomic.Uint64
	takers     takers
	book       *book
}

func streamName(service string) string { return strings.ToUpper(service) + "_DLQ" }
func bucketName(service string) string { return strings.ToUpper(service) + "_DLQ_BODIES" }
func retryName(service string) string  { return strings.ToUpper(service) + "_RETRY" }

func newStore(js jetstream.JetStream, service string, stream jetstream.Stream) *Store {
	return &Store{js: js, service: service, stream: stream, log: slog.New(slog.DiscardHandler), timeout: callTimeout, grace: sweepGrace, book: newBook()}
}

// Open returns the dead letters of cfg.Service and makes their stream and bucket when they are missing. One that is there is
// changed to what cfg says; prefixes that cfg does not name stay, for entries may be stored under them, and so do more
// replicas. A setting that the server does not change is a [*ConfigError], and a fault of cfg is an error of [Config.Validate]. Several instances may open at once.
func Open(ctx context.Context, js jetstream.JetStream, cfg Config) (*Store, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	var streams []jetstream.Stream
	for _, want := range cfg.Streams() {
		stream, err := ownstream.Ensure(ctx, js, want, cfg.Logger)
		var fault *ConfigError
		if err != nil && !errors.As(err, &fault) {
			err = fmt.Errorf("stream %s: %w", want.Name, classify(err))
		}
		if err != nil {
			return nil, err
		}
		streams = append(streams, stream)
	}
	s := newStore(js, cfg.Service, streams[0])
	s.instance, s.log, s.dropOldest = cfg.Instance, cfg.Logger, cfg.OnFull == OnFullDropOldest
	return s, nil
}

// Attach returns the dead letters of a service (empty: relay) as they are, and makes nothing. It returns an error that is
// [ErrNoStream] when the service has none.
func Attach(ctx context.Context, js jetstream.JetStream, service string) (*Store, error) {
	service = cmp.Or(service, "relay")
	if !serviceRule.MatchString(service) {
		return nil, fmt.Errorf("service: must be 1 to 64 letters, digits, - or _ (got %q)", service)
	}
	stream, err := js.Stream(ctx, streamName(service))
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, fmt.Errorf("%w: %s is not on this server: relay makes it when it starts; check the server, the account and the service name",
			ErrNoStream, streamName(service))
	}
	if err != nil {
		return nil, fmt.Errorf("stream %s: %w", streamName(service), classify(err))
	}
	return newStore(js, service, stream), nil
}

func (c Config) streamConfig() jetstream.StreamConfig {
	cfg := jetstream.StreamConfig{
		Name:        streamName(c.Service),
		Description: "relay: dead letters",
		Retention:   jetstream.LimitsPolicy,
		Storage:     jetstream.FileStorage,
		Replicas:    c.Replicas,
		MaxAge:      c.MaxAge,
		MaxBytes:    c.MaxBytes,
		MaxMsgs:     c.MaxMsgs,
		// For drop_oldest too: the server would drop without a word, and leave the bodies behind. See Store.drop.
		Discard:     jetstream.DiscardNew,
		AllowDirect: true,
		// Entries carry no message ids: their subjects make them unique. The window is the server's default, but
		// it may not exceed MaxAge.
		Duplicates: 2 * time.Minute,
	}
	if cfg.MaxBytes == 0 {
		cfg.MaxBytes = -1
	}
	if c.MaxAge > 0 {
		cfg.Duplicates = min(cfg.Duplicates, c.MaxAge)
	}
	for _, p := range c.prefixes() {
		cfg.Subjects = append(cfg.Subjects, p+".>")
	}
	return cfg
}

// bucketConfig is what jetstream.CreateObjectStore would make. No age: the body of a replayed message must outlive its
// entry.
func (c Config) bucketConfig(stream jetstream.StreamConfig) jetstream.StreamConfig {
	name := bucketName(c.Service)
	return jetstream.StreamConfig{
		Name:        "OBJ_" + name,
		Description: "relay: bodies of dead letters that do not fit into a message",
		Subjects:    []string{"$O." + name + ".C.>", "$O." + name + ".M.>"},
		Retention:   jetstream.LimitsPolicy,
		Storage:     jetstream.FileStorage,
		Replicas:    c.Replicas,
		MaxBytes:    stream.MaxBytes,
		Discard:     jetstream.DiscardNew,
		AllowRollup: true,
		AllowDirect: true,
		Duplicates:  2 * time.Minute,
	}
}

// Streams are those that [Open] makes: that of the entries, and that of the bucket with the large bodies.
func (c Config) Streams() []jetstream.StreamConfig {
	c = c.withDefaults()
	entries := c.streamConfig()
	return []jetstream.StreamConfig{entries, c.bucketConfig(entries)}
}

// Name of the stream.
func (s *Store) Name() string { return streamName(s.service) }

// Bucket is the name of the object store with the large bodies.
func (s *Store) Bucket() string { return bucketName(s.service) }

// apiPrefix is what the subjects of the JetStream API begin with.
func (s *Store) apiPrefix() string {
	opts := s.js.Options()
	switch {
	case opts.APIPrefix != "":
		return strings.TrimSuffix(opts.APIPrefix, ".") + "."
	case opts.Domain != "":
		return "$JS." + opts.Domain + ".API."
	}
	return jetstream.DefaultAPIPrefix
}

// api calls the JetStream API of the stream's leader, which nats.go would ask only for streams without direct access.
func (s *Store) api(ctx context.Context, call, stream string, request, response any) error {
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	m, err := s.js.Conn().RequestWithContext(ctx, s.apiPrefix()+call+"."+stream, body)
	if err != nil {
		return err
	}
	var failed struct {
		Error *jetstream.APIError `json:"error"`
	}
	if err := json.Unmarshal(m.Data, &failed); err != nil {
		return err
	}
	if failed.Error != nil {
		return failed.Error
	}
	if response == nil {
		return nil
	}
	return json.Unmarshal(m.Data, response)
}

// last asks the leader of a stream for the last message on a subject. It returns an error that is [ErrNotFound] when there
// is none.
func (s *Store) last(ctx context.Context, stream, subj string) (*jetstream.RawStreamMsg, error) {
	return s.ask(ctx, stream, map[string]string{"last_by_subj": subj})
}

// ask gets a message from the leader of a stream: a replica may not have it yet, or still have what was removed.
func (s *Store) ask(ctx context.Context, stream string, request any) (*jetstream.RawStreamMsg, error) {
	var r struct {
		Message *struct {
			Subject  string    `json:"subject"`
			Sequence uint64    `json:"seq"`
			Header   []byte    `json:"hdrs"`
			Data     []byte    `json:"data"`
			Time     time.Time `json:"time"`
		} `json:"message"`
	}
	err := transient.Do(ctx, s.js.Conn(), func(ctx context.Context) error { return s.api(ctx, "STREAM.MSG.GET", stream, request, &r) })
	if err != nil {
		return nil, classify(err)
	}
	if r.Message == nil {
		return nil, jetstream.ErrInvalidJetStreamResponse
	}
	m := &jetstream.RawStreamMsg{Subject: r.Message.Subject, Sequence: r.Message.Sequence, Data: r.Message.Data, Time: r.Message.Time}
	if len(r.Message.Header) > 0 {
		if m.Header, err = nats.DecodeHeadersMsg(r.Message.Header); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// removable is an error when nothing can be removed from the stream: what is replayed would stay, and be replayed again.
func (s *Store) removable(ctx context.Context) error {
	info, err := answered(ctx, s.timeout, func(ctx context.Context) (*jetstream.StreamInfo, error) { return s.stream.Info(ctx) })
	if err != nil {
		return classify(err)
	}
	if info.Config.Sealed || info.Config.DenyDelete {
		return fmt.Errorf("stream %s is sealed or has deny_delete, so what is replayed would stay there, and be replayed again; nothing was handed over. "+
			"relay run does not start with such a stream, and says what to do", s.Name())
	}
	return nil
}

// remove deletes one message by sequence; the error is [ErrNotFound] when it is gone already. When the connection was lost before the answer came the
// message may be gone, too.
func (s *Store) remove(ctx context.Context, stream string, seq uint64) error {
	err := transient.Once(ctx, s.js.Conn(), func(ctx context.Context) error {
		return s.api(ctx, "STREAM.MSG.DELETE", stream, map[string]any{"seq": seq, "no_erase": true}, nil)
	})
	var api *jetstream.APIError
	if errors.As(err, &api) && api.ErrorCode == codeDeleteFailed {
		if _, gone := s.ask(ctx, stream, map[string]uint64{"seq": seq}); errors.Is(gone, ErrNotFound) {
			return gone
		}
	}
	return classify(err)
}
