package suspects

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/relaymq/relay/internal/kvwatch"
	"github.com/relaymq/relay/internal/ownstream"
	"github.com/relaymq/relay/internal/subject"
	"github.com/relaymq/relay/internal/transient"
)

// patience is how long the server may take to answer.
const patience = 5 * time.Second

// Lives knows which processes of the service died without a clean end.
type Lives struct {
	cfg     Config
	id      string
	kv      jetstream.KeyValue
	answers *nats.Subscription
	span    time.Duration // how long after a death its messages come back at most
	every   time.Duration // for how long a look is good

	looking chan struct{} // held by whoever looks; guards looked
	looked  time.Time

	reconnected atomic.Int64 // when, in Unix nanoseconds

	living atomic.Pointer[[]string] // ids of the other processes that did not die as far as Watch knows
	mu     sync.Mutex
	dead   map[string]death
}

type death struct {
	found time.Time
	until time.Time // messages that come again are suspects
}

const (
	// Lapse is when the entry of a process that nobody asked about vanishes by itself.
	Lapse = 24 * time.Hour
	// A look into the bucket is good for a quarter of the shortest AckWait, within these bounds: a message comes again two thirds
	// of AckWait (at least a second) after its process died, or later, so that a look that young has seen the death.
	minLook, maxLook = 250 * time.Millisecond, 5 * time.Second
	// answerWithin is how long a process that lives may take to answer.
	answerWithin = time.Second
	// askAgain is the pause before a process that does not answer is asked again. After a reconnect it is settling: the
	// others may be on their way back too.
	askAgain = 400 * time.Millisecond
	settling = 5 * time.Second
	// comesLate is how much later than AckWait messages may come that wait for room.
	comesLate = 10 * time.Second
	// longest bounds how long a death makes suspects, whatever is still to be run alone.
	longest = 5 * time.Minute
	// maxDead entries are kept of processes that die again and again.
	maxDead = 16
)

// Bucket is the name of the bucket of a service.
func Bucket(service string) string { return strings.ToUpper(service) + "_INSTANCES" }

// Config says whose processes these are.
type Config struct {
	Conn     *nats.Conn
	JS       jetstream.JetStream
	Service  string
	Instance string    // the name of this process
	Began    time.Time // when this process began
	Replicas int       // of the bucket
	// Asked answers what another process wants to know; nil: nothing.
	Asked  func(question []byte) (answer []byte)
	Logger *slog.Logger
}

// ID is that of this process, as it is written into the record of a suspect that runs in it.
func (l *Lives) ID() string { return l.id }

func (l *Lives) subject(id string) string { return l.cfg.Service + ".ctl.alive." + id }

// Open makes the bucket when it is missing. It says nothing yet of this process: see [Lives.Begin].
func Open(ctx context.Context, cfg Config) (*Lives, error) {
	name := Bucket(cfg.Service)
	kv, err := ownstream.OpenBucket(ctx, cfg.JS, jetstream.KeyValueConfig{
		Bucket: name, Replicas: cfg.Replicas, TTL: Lapse, Description: "relay: processes that run Go handlers",
	})
	if err != nil {
		return nil, fmt.Errorf("bucket %s: %w", name, err)
	}
	return &Lives{cfg: cfg, id: nuid.Next(), kv: kv, looking: make(chan struct{}, 1), dead: make(map[string]death), every: maxLook}, nil
}

// Cover has it look as often, and remember as long, as a route with Go handlers needs.
func (l *Lives) Cover(ackWait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.span, l.every = max(l.span, ackWait), max(minLook, min(l.every, ackWait/4))
}

// pace is how often it looks.
func (l *Lives) pace() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.every
}

// Begin says that this process lives. It is called before the first message is pulled; ctx must have a
// deadline.
func (l *Lives) Begin(ctx context.Context) (err error) {
	l.answers, err = l.cfg.Conn.Subscribe(l.subject(l.id), func(m *nats.Msg) {
		switch {
		case !subject.Inbox(m.Reply, l.cfg.Conn.Opts.InboxPrefix):
		case len(m.Data) > 0 && l.cfg.Asked != nil:
			go func() { _ = m.Respond(l.cfg.Asked(m.Data)) }()
		default:
			_ = m.Respond(nil)
		}
	})
	if err != nil {
		return err
	}
	if err = l.cfg.Conn.FlushWithContext(ctx); err == nil {
		err = l.renew(ctx)
	}
	if err != nil {
		_ = l.answers.Unsubscribe()
	}
	return err
}

// renew writes the entry, which would lapse otherwise.
func (l *Lives) renew(ctx context.Context) error {
	value, err := json.Marshal(entry{Instance: l.cfg.Instance, Since: l.cfg.Began.UTC()})
	if err == nil {
		_, err = l.kv.Put(ctx, l.id, value)
	}
	if err != nil {
		return fmt.Errorf("bucket %s: %w", l.kv.Bucket(), err)
	}
	return nil
}

// entry is that of a process.
type entry struct {
	Instance string    `json:"instance"`
	Since    time.Time `json:"since"`
	// Dead: another process found that it died, and saw to what it had in hand.
	Dead bool `json:"dead,omitempty"`

	revision uint64
}

// End is the clean end. Without it the others take this process for one that died, which costs time and nothing else.
func (l *Lives) End(ctx context.Context) {
	if err := l.remove(ctx, l.id); err != nil {
		l.cfg.Logger.Warn("cannot record that this process ended cleanly; the messages that it had in hand run alone next", "error", err)
	}
	_ = l.answers.Unsubscribe()
}

// remove ends an entry. What marks that lapses as entries do: without it the others would not hear of it.
func (l *Lives) remove(ctx context.Context, id string) error { return l.kv.Delete(ctx, id) }

// Housekeep renews the own entry every hour, and removes those of the dead of which nothing can come any more.
func (l *Lives) Housekeep(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := l.renew(ctx); err != nil {
		l.cfg.Logger.Debug("cannot renew the entry of this process; retrying in an hour", "error", err)
	}
	now := time.Now()
	l.mu.Lock()
	var over []string
	for id, d := range l.dead {
		if now.After(d.until) {
			over = append(over, id)
		}
	}
	l.mu.Unlock()
	for _, id := range over {
		if l.remove(ctx, id) == nil {
			l.mu.Lock()
			delete(l.dead, id)
			l.mu.Unlock()
		}
	}
}

// Recent tells whether a message that comes again now may have been in a process that died. It may block for some
// seconds.
func (l *Lives) Recent(ctx context.Context) (bool, error) {
	came := time.Now()
	done, err := l.Turn(ctx)
	if err != nil {
		return false, err
	}
	defer done()
	if came.Sub(l.looked) >= l.pace() {
		now := time.Now()
		if err := l.look(ctx); err != nil {
			return false, err
		}
		l.looked = now
	}
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, d := range l.dead {
		if now.Before(d.until) {
			return true, nil
		}
	}
	return false, nil
}

// Turn waits until nobody looks into the bucket, and keeps others from it until done is called.
func (l *Lives) Turn(ctx context.Context) (done func(), err error) {
	select {
	case l.looking <- struct{}{}:
		return func() { <-l.looking }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Reconnected notes that the connection was away: others that were cut off with this process may still be on their way back.
func (l *Lives) Reconnected(now time.Time) { l.reconnected.Store(now.UnixNano()) }

// look finds the processes that died since.
func (l *Lives) look(ctx context.Context) error {
	ids, err := kvwatch.Keys(ctx, l.cfg.Conn, l.kv, ">")
	if err != nil {
		return err
	}
	var unknown []string
	known := 0
	l.mu.Lock()
	for _, id := range ids {
		if _, dead := l.dead[id]; dead {
			known++
		} else if id != l.id {
			unknown = append(unknown, id)
		}
	}
	l.mu.Unlock()
	silent, err := l.silent(ctx, unknown)
	if err != nil || len(silent) == 0 {
		return err
	}
	now := time.Now()
	l.mu.Lock()
	for _, id := range silent {
		l.dead[id] = death{found: now, until: now.Add(l.span + comesLate)}
	}
	l.mu.Unlock()
	l.cfg.Logger.Warn("a process of this service died; the messages that it had in hand run alone when they are redelivered", "processes", len(silent))
	if known += len(silent); known > maxDead {
		l.forget(ctx, known-maxDead)
	}
	return nil
}

// forget removes the entries of the n that died first: the later ones tell others as much.
func (l *Lives) forget(ctx context.Context, n int) {
	l.mu.Lock()
	ids := make([]string, 0, len(l.dead))
	for id := range l.dead {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b string) int { return l.dead[a].found.Compare(l.dead[b].found) })
	l.mu.Unlock()
	for _, id := range ids[:min(n, len(ids))] {
		_ = l.remove(ctx, id) // still known here
	}
}

// silent are those of the processes that do not answer.
func (l *Lives) silent(ctx context.Context, ids []string) (list []string, err error) {
	for first := true; ; first = false {
		list = nil
		var mu sync.Mutex
		var asking sync.WaitGroup
		for _, id := range ids {
			asking.Go(func() {
				answers, e := l.alive(ctx, id)
				mu.Lock()
				defer mu.Unlock()
				if e != nil && !errors.Is(e, context.DeadlineExceeded) {
					err = e
				} else if !answers {
					list = append(list, id)
				}
			})
		}
		asking.Wait()
		if err != nil || ctx.Err() != nil {
			return nil, errors.Join(err, ctx.Err())
		}
		if len(list) == 0 || !first && !l.settles() {
			return list, nil
		}
		ids = list
		transient.Pause(ctx, askAgain)
	}
}

// settles tells whether others that were cut off with this process may still be on their way back.
func (l *Lives) settles() bool { return time.Since(time.Unix(0, l.reconnected.Load())) <= settling }

// alive asks one process. With false, a nil error means that it is not connected, and an error that nobody knows.
func (l *Lives) alive(ctx context.Context, id string) (bool, error) {
	if id == l.id {
		return true, nil
	}
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	_, err := l.cfg.Conn.RequestWithContext(ctx, l.subject(id), nil)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, nats.ErrNoResponders):
		return false, nil
	}
	return false, err
}

// ErrThere says that another process is connected: it still runs the message, or it sleeps, or it is dying, which may take
// seconds, and in which it may still answer.
var ErrThere = errors.New("the process that ran the message has not ended yet")

// Ended tells whether a process is certainly gone, or at least cut off from the servers.
func (l *Lives) Ended(ctx context.Context, id string) (bool, error) {
	for try := 0; ; try++ {
		answers, err := l.alive(ctx, id)
		switch {
		case id == l.id:
			return false, nil
		case answers, errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
			return false, ErrThere
		case err != nil || try > 0 && !l.settles():
			return err == nil, err
		}
		transient.Pause(ctx, askAgain)
	}
}

// Prolong extends the suspicion while suspects are being run: others wait behind them for room.
func (l *Lives) Prolong() {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, d := range l.dead {
		if now.Before(d.until) {
			if more := now.Add(l.span + 2*time.Second); more.After(d.until) {
				d.until = more
			}
			if most := d.found.Add(l.span + longest); d.until.After(most) {
				d.until = most
			}
			l.dead[id] = d
		}
	}
}
