package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/relaymq/relay/consumer/internal/limits"
	"github.com/relaymq/relay/consumer/internal/route"
	"github.com/relaymq/relay/internal/subject"
	"github.com/relaymq/relay/supervisor"
)

// Route says which messages get which handler, and how they are treated. Everything but Name, Subjects and the handler
// has a default. The koanf tags are the names of the configuration file.
type Route struct {
	// Name tells the route from the others: letters, digits, - and _. It is part of subjects and metrics.
	Name string `koanf:"name"`
	// Subjects may hold wildcards. They must not overlap those of another route on the same stream, unless both share a
	// Durable: then the most specific one gets the message.
	Subjects []string `koanf:"subjects"`
	// Stream is found by the subjects when empty.
	Stream string `koanf:"stream"`
	// Durable is the name of the consumer on the stream. Empty means Name. Routes with the same Durable on the same
	// stream share one consumer.
	Durable string `koanf:"durable"`
	// Start is where a durable that does not exist yet begins. It is required when the stream already holds messages
	// that match.
	Start Start `koanf:"start"`
	// Concurrency is how many handlers run at once. Zero means 64.
	Concurrency int `koanf:"concurrency"`
	// Limits names those of [Config.Limits] that the messages of the route need room in.
	Limits []string `koanf:"limits"`
	// Rate is how many attempts of the route may start in a time on each instance. Burst is how many may start at once after a while
	// with fewer; zero means what Rate permits in a twentieth of a second, and at least 1. A zero Rate means no limit.
	Rate  Rate `koanf:"rate"`
	Burst int  `koanf:"burst"`
	// Key is what is supervised together: subject (default), route, or a template over the subject's tokens such as {2}.
	Key string `koanf:"key"`
	// Order is none (default), or key: one message of a key at a time, in stream order.
	Order supervisor.Order `koanf:"order"`
	// Instances is how many instances of the service handle messages of the route at a time: all, or one, with the others standing
	// by. The default is all; with order: key it is one, and all is an error. Routes that share a Durable have the same.
	Instances string `koanf:"instances"`
	// Partitions is the number of parts into which the messages are divided by their keys, so that several instances can handle them with order:
	// key: 2 to 256. Each part is a durable on a stream of relay's own, to which the server copies the messages, and one instance at a time has
	// it. Zero: one instance handles all messages. The tokens that Key names are wildcards in all Subjects. When the number, the key or the
	// subjects change, the messages are divided again and keep their order.
	Partitions int `koanf:"partitions"`
	// Timeout ends an attempt. Zero means 30s.
	Timeout time.Duration `koanf:"timeout"`
	// AckWait is the ack wait of the durable: JetStream redelivers a message that was not settled or extended for that
	// long. Zero means 30s; below 1s is an error. While a handler runs, relay extends it.
	AckWait time.Duration `koanf:"ack_wait"`

	Retry      Retry             `koanf:"retry"`
	Supervisor supervisor.Config `koanf:"supervisor"`
	Stash      Stash             `koanf:"stash"`
	DeadLetter DeadLetter        `koanf:"dead_letter"`
	Caller     Caller            `koanf:"caller"`
	Deadline   Deadline          `koanf:"deadline"`
	Interest   Interest          `koanf:"interest"`

	// Batch hands several messages at once to Handler, which must be a [BatchHandler]. Nil: one at a time.
	Batch *Batch `koanf:"batch"`
	// Fallback is a second handler, for messages that wait or whose attempts are spent. Nil: there is none.
	Fallback *Fallback `koanf:"-"`
	// Handler has no state that a stop would have to discard: all keys share it. Either Handler or Factory is set.
	Handler Handler `koanf:"-"`
	// Factory makes a handler for each key, and a new one after each stop.
	Factory Factory `koanf:"-"`
	// Use are middleware around the handler, within those of [Config.Use]. The first is the outermost.
	Use []Middleware `koanf:"-"`
	// OwnBytes promises that the handler does not change or keep Msg.Data and Msg.Header, so that relay need not copy
	// them for each attempt.
	OwnBytes bool `koanf:"-"`
	// Check says of a Factory what [Checker] says of a Handler: whether it can work, before the first message. It may be nil. A Handler
	// that is a Checker is asked instead.
	Check func(ctx context.Context) error `koanf:"-"`
	// Outside says of a Factory what [Outside] says of a Handler: that all it makes do their work in another process.
	Outside bool `koanf:"-"`
}

// Retry is when and how often a message that failed is tried again.
type Retry struct {
	// MaxAttempts is how many handler starts a message gets before it is dead-lettered. Zero means 20; -1 means no
	// bound but MaxAge.
	MaxAttempts int `koanf:"max_attempts"`
	// Backoff is the delay by the number of failed attempts: exponential, 500ms to 10m, by default.
	supervisor.Backoff `koanf:",squash"`
	// MaxAge dead-letters a message, with reason expired, that fails, or comes again, later than this after its first
	// failure. Between processes it goes by the wall clock. Zero means 24h.
	MaxAge time.Duration `koanf:"max_age"`
	// ParkAfter is the delay from which a message waits in the retry stream rather than in its consumer. Zero means 10m.
	ParkAfter time.Duration `koanf:"park_after"`
	// ParkMax bounds the messages that wait in the retry stream. Zero means 10,000,000.
	ParkMax int `koanf:"park_max"`
	// MaxCrashes is how often a message may end the process it runs in. Zero means 3.
	MaxCrashes int `koanf:"max_crashes"`
}

// Stash bounds the messages that a route holds in memory because their key waits.
type Stash struct {
	// Messages: zero means 1000.
	Messages int `koanf:"messages"`
	// Bytes counts bodies and headers. Zero means 64MiB. A message of the server's max_payload fits always.
	Bytes Bytes `koanf:"bytes"`
}

// DeadLetter says where the dead letters of the route go.
type DeadLetter struct {
	// Prefix of their subjects. Empty means <service>.dlq. Another prefix is added to the dead-letter stream.
	Prefix string `koanf:"prefix"`
}

// InstancesOne is what Route.Instances says when one instance at a time handles the messages of the route.
const InstancesOne = route.InstancesOne

// What settings say when they are left out.
const (
	instancesAll = "all"
	orderNone    = supervisor.Order("none")
)

// WithDefaults fills the zero fields. Prefixes depend on the service and stay empty.
func (r Route) WithDefaults() Route {
	r.Durable = cmp.Or(r.Durable, r.Name)
	if r.Batch != nil {
		r.Batch = new(r.Batch.WithDefaults())
		r.Concurrency = cmp.Or(r.Concurrency, r.Batch.concurrency())
	}
	r.Concurrency = cmp.Or(r.Concurrency, 64)
	r.Key = cmp.Or(r.Key, "subject")
	r.Order = cmp.Or(r.Order, orderNone)
	if r.Order == supervisor.OrderKey && r.Partitions == 0 { // a second instance would get what must wait for the first one
		r.Instances = cmp.Or(r.Instances, InstancesOne)
	}
	r.Instances = cmp.Or(r.Instances, instancesAll)
	r.Timeout = cmp.Or(r.Timeout, 30*time.Second)
	r.AckWait = cmp.Or(r.AckWait, 30*time.Second)
	r.Retry.MaxAttempts = cmp.Or(r.Retry.MaxAttempts, 20)
	r.Retry.Backoff = r.Retry.Backoff.WithRetryDefaults()
	r.Retry.MaxAge = cmp.Or(r.Retry.MaxAge, 24*time.Hour)
	r.Retry.ParkAfter = cmp.Or(r.Retry.ParkAfter, 10*time.Minute)
	r.Retry.ParkMax = cmp.Or(r.Retry.ParkMax, 10_000_000)
	r.Retry.MaxCrashes = cmp.Or(r.Retry.MaxCrashes, 3)
	r.Supervisor = r.Supervisor.WithDefaults()
	r.Stash.Messages = cmp.Or(r.Stash.Messages, 1000)
	r.Stash.Bytes = cmp.Or(r.Stash.Bytes, 64<<20)
	r.Caller.MaxResult = cmp.Or(r.Caller.MaxResult, 256<<10)
	r.Deadline.OnExpired = cmp.Or(r.Deadline.OnExpired, expiredDrop)
	r.Interest.Timeout = cmp.Or(r.Interest.Timeout, 250*time.Millisecond)
	r.Interest.Unknown = cmp.Or(r.Interest.Unknown, unknownStart)
	if r.Fallback != nil {
		r.Fallback = new(r.Fallback.WithDefaults(r.Timeout))
	}
	return r
}

// Validate returns every fault of the route by itself, each beginning with the config name of its field. It does not
// look at the handler, nor at other routes.
func (r Route) Validate() error {
	r = r.WithDefaults()
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	under := func(prefix string, err error) {
		if err == nil {
			return
		}
		if joined, ok := err.(interface{ Unwrap() []error }); ok {
			for _, e := range joined.Unwrap() {
				fault("%s%w", prefix, e)
			}
			return
		}
		fault("%s%w", prefix, err)
	}
	name := func(key, got string) {
		if !subject.IsName(got) {
			fault("%s: must be 1 to 64 letters, digits, - or _ (got %q)", key, got)
		}
	}
	name("name", r.Name)
	if r.Durable != r.Name {
		name("durable", r.Durable)
	}
	switch s := r.Start; {
	case s.Policy == "since" && s.Since.IsZero(), s.Policy == "seq" && s.Seq == 0:
		fault("start: %s needs a value: use Since or FromSeq (got %+v)", s.Policy, s)
	case !slices.Contains([]string{"", "all", "new", "since", "seq"}, s.Policy):
		fault("start: must be all, new, since or seq (got %q): use StartAll, StartNew, Since or FromSeq", s.Policy)
	}
	if r.Stream != "" && strings.ContainsAny(r.Stream, " .*>/\\\t\r\n") {
		fault("stream: %q is not a stream name", r.Stream)
	}
	if len(r.Subjects) == 0 {
		fault("subjects: at least one is required")
	}
	for i, s := range r.Subjects {
		under(fmt.Sprintf("subjects[%d]: ", i), subject.ValidatePattern(s))
		for j, other := range r.Subjects[:i] {
			if subject.Overlaps(s, other) {
				fault("subjects[%d]: %q overlaps subjects[%d] %q", i, s, j, other)
			}
		}
	}
	if r.Key != "subject" && r.Key != "route" {
		if _, err := subject.ParseTemplate(r.Key); err != nil {
			fault("key: %w", err)
		} else if !strings.Contains(r.Key, "{") {
			fault("key: must be subject, route or a template such as {2} (got %q)", r.Key)
		}
	}
	if r.Order != orderNone && r.Order != supervisor.OrderKey {
		fault("order: must be none or key (got %q)", r.Order)
	}
	if r.Instances != instancesAll && r.Instances != InstancesOne {
		fault("instances: must be all or one (got %q)", r.Instances)
	} else if r.Order == supervisor.OrderKey && r.Instances == instancesAll && r.Partitions == 0 {
		fault("instances: all cannot be combined with order: key, whose messages one instance handles: remove one of the two, set instances: one, or divide the messages with partitions")
	}
	r.validatePartitions(fault)
	if r.Concurrency < 1 || r.Concurrency > 65_536 {
		fault("concurrency: must be 1 to 65536 (got %d)", r.Concurrency)
	}
	errs = append(errs, limits.ValidateRate(r.Rate, r.Burst)...)
	if r.Timeout <= 0 {
		fault("timeout: must be above 0 (got %v)", r.Timeout)
	}
	if r.AckWait < time.Second {
		fault("ack_wait: must be at least 1s (got %v)", r.AckWait)
	}
	if r.Retry.MaxAttempts < -1 {
		fault("retry.max_attempts: must be above 0, or -1 for no limit (got %d)", r.Retry.MaxAttempts)
	}
	under("retry.", r.Retry.Backoff.Validate())
	if r.Retry.MaxAge <= 0 {
		fault("retry.max_age: must be above 0 (got %v)", r.Retry.MaxAge)
	}
	if r.Retry.ParkAfter <= 0 {
		fault("retry.park_after: must be above 0 (got %v)", r.Retry.ParkAfter)
	}
	if r.Retry.ParkMax < 0 {
		fault("retry.park_max: must be above 0 (got %d)", r.Retry.ParkMax)
	}
	if r.Retry.MaxCrashes < 1 {
		fault("retry.max_crashes: must be at least 1 (got %d)", r.Retry.MaxCrashes)
	}
	under("supervisor.", r.Supervisor.Validate())
	r.validateCallers(fault)
	r.validateFallback(fault)
	r.validateBatch(fault)
	if r.Stash.Messages < 1 {
		fault("stash.messages: must be at least 1 (got %d)", r.Stash.Messages)
	}
	if r.Stash.Bytes < 1<<20 {
		fault("stash.bytes: must be at least 1MiB (got %v)", r.Stash.Bytes)
	}
	if r.DeadLetter.Prefix != "" {
		under("dead_letter.prefix: ", subject.ValidateLiteral(r.DeadLetter.Prefix))
	}
	return errors.Join(errs...)
}
