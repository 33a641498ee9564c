package consumer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/relaymq/relay/ack"
)

// A Go handler can end the whole process: os.Exit, a panic in a goroutine of its own, a fatal error of the runtime, all the
// memory. The message that does so would come again after each restart, for ever. What finds it:
//
// Each process has a life: an entry in the bucket <SERVICE>_INSTANCES from its start to its clean end, and a subscription
// that answers while it lives. An entry whose life does not answer is a process that died. A message that was delivered
// before, that no instance has said anything of since, and that comes soon after such a death is a suspect: perhaps it ran
// when the process died, and perhaps it is the reason.
//
// Suspects run one at a time, while no other handler runs in the process (solo.go), and before each is started that is
// written into its record. When it comes again with that record, and the life that ran it is no more, then it ended the
// process itself: that is a crash. Nothing else is one, so that no neighbour is ever charged. At retry.max_crashes the
// message goes to the dead letters instead of being started.
//
// Fresh messages cost nothing of this, and redelivered ones a look into the bucket while there was no death. Routes whose
// handlers do their work in another process (Outside) have no suspects.

// lives knows which processes of the service died without a clean end.
type lives struct {
	relay   *Relay
	id      string
	kv      jetstream.KeyValue
	stream  jetstream.Stream
	answers *nats.Subscription
	span    time.Duration // how long after a death its messages come back at most
	every   time.Duration // for how long a look is good

	looking chan struct{} // held by whoever looks; guards looked
	looked  time.Time

	reconnected atomic.Int64 // when, in Unix nanoseconds

	mu   sync.Mutex
	dead map[string]death
}

type death struct {
	found time.Time
	until time.Time // messages that come again are suspects
}

const (
	// lapse is when the entry of a process that nobody asked about vanishes by itself.
	lapse = 24 * time.Hour
	// A look into the bucket is good for a quarter of the shortest AckWait, within these bounds: a message comes again two thirds
	// of AckWait (at least a second) after its process died, or later, so that a look that young has seen the death.
	minLook, maxLook = 250 * time.Millisecond, 5 * time.Second
	// answerWithin is how long a process that lives may take to answer.
	answerWithin = time.Second
	// askAgain is the pause before a process that does not answer is asked again. After a reconnect it is settling: the
	// others may be on their way back too.
	askAgain = 400 * time.Millisecond
	settling = 5 * time.Second
	// dying is how long a process that ran a suspect may take to be gone: a stack overflow first fills a gigabyte, and then
	// writes what it did.
	dying = 30 * time.Second
	// comesLate is how much later than AckWait messages may come that wait for room.
	comesLate = 10 * time.Second
	// longest bounds how long a death makes suspects, whatever is still to be run alone.
	longest = 5 * time.Minute
	// maxDead entries are kept of processes that die again and again.
	maxDead = 16
)

func (r *Relay) instancesName() string { return strings.ToUpper(r.cfg.Service) + "_INSTANCES" }

func (l *lives) subject(id string) string { return l.relay.cfg.Service + ".ctl.alive." + id }

// openLives makes the bucket when it is missing.
func openLives(ctx context.Context, r *Relay) (*lives, error) {
	name := r.instancesName()
	kv, err := r.js.KeyValue(ctx, name)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		kv, err = r.js.CreateKeyValue(ctx, jetstream.KeyValueConfig{
			Bucket: name, Replicas: r.cfg.Replicas, TTL: lapse, Description: "relay: processes that run Go handlers",
		})
	}
	if err != nil {
		return nil, fmt.Errorf("bucket %s: %w", name, err)
	}
	stream, err := r.js.Stream(ctx, "KV_"+name)
	if err != nil {
		return nil, fmt.Errorf("stream of bucket %s: %w", name, err)
	}
	l := &lives{relay: r, id: nuid.Next(), kv: kv, stream: stream, looking: make(chan struct{}, 1), dead: make(map[string]death), every: maxLook}
	for _, rt := range r.all() {
		l.cover(rt)
	}
	return l, nil
}

// cover has lives look as often, and remember as long, as a route needs.
func (l *lives) cover(rt *route) {
	if !rt.guarded {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.span, l.every = max(l.span, rt.cfg.AckWait), max(minLook, min(l.every, rt.cfg.AckWait/4))
}

// pace is how often it looks.
func (l *lives) pace() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.every
}

// begin is called before the first message is pulled.
func (l *lives) begin(ctx context.Context) (err error) {
	l.answers, err = l.relay.nc.Subscribe(l.subject(l.id), func(m *nats.Msg) { _ = m.Respond(nil) })
	if err != nil {
		return err
	}
	if err = l.relay.nc.FlushWithContext(ctx); err == nil {
		err = l.renew(ctx)
	}
	if err != nil {
		_ = l.answers.Unsubscribe()
	}
	return err
}

// renew writes the entry, which would lapse otherwise.
func (l *lives) renew(ctx context.Context) error {
	value, err := json.Marshal(struct {
		Instance string    `json:"instance"`
		Since    time.Time `json:"since"`
	}{l.relay.cfg.Instance, l.relay.since().UTC()})
	if err == nil {
		_, err = l.kv.Put(ctx, l.id, value)
	}
	if err != nil {
		return fmt.Errorf("bucket %s: %w", l.kv.Bucket(), err)
	}
	return nil
}

// end is the clean end. Without it the others take this process for one that died, which costs time and nothing else.
func (l *lives) end(ctx context.Context) {
	if err := l.remove(ctx, l.id); err != nil {
		l.relay.log.Warn("this process ends, and could not say so: what it had in hand is run alone next", "error", err)
	}
	_ = l.answers.Unsubscribe()
}

func (l *lives) remove(ctx context.Context, id string) error {
	return l.stream.Purge(ctx, jetstream.WithPurgeSubject("$KV."+l.kv.Bucket()+"."+id))
}

// housekeep renews the own entry every hour, and removes those of the dead of which nothing can come any more.
func (l *lives) housekeep(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	if err := l.renew(ctx); err != nil {
		l.relay.log.Debug("entry not renewed; tried again in an hour", "error", err)
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

// recent tells whether a message that comes again now may have been in a process that died. It may block for some
// seconds.
func (l *lives) recent(ctx context.Context) (bool, error) {
	came := time.Now()
	select {
	case l.looking <- struct{}{}:
	case <-ctx.Done():
		return false, ctx.Err()
	}
	defer func() { <-l.looking }()
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

// look finds the processes that died since.
func (l *lives) look(ctx context.Context) error {
	lister, err := l.kv.ListKeys(ctx)
	if err != nil {
		return err
	}
	var ids, unknown []string
	for id := range lister.Keys() {
		ids = append(ids, id)
	}
	_ = lister.Stop()
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
	l.relay.log.Warn("a process of this service died: what it had in hand is run alone as it comes again", "processes", len(silent))
	if known += len(silent); known > maxDead {
		l.forget(ctx, known-maxDead)
	}
	return nil
}

// forget removes the entries of the n that died first: the later ones tell others as much.
func (l *lives) forget(ctx context.Context, n int) {
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
func (l *lives) silent(ctx context.Context, ids []string) (list []string, err error) {
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
		pause(ctx, askAgain)
	}
}

// settles tells whether others that were cut off with this process may still be on their way back.
func (l *lives) settles() bool { return time.Since(time.Unix(0, l.reconnected.Load())) <= settling }

// alive asks one process. With false, a nil error means that it is not connected, and an error that nobody knows.
func (l *lives) alive(ctx context.Context, id string) (bool, error) {
	if id == l.id {
		return true, nil
	}
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	_, err := l.relay.nc.RequestWithContext(ctx, l.subject(id), nil)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, nats.ErrNoResponders):
		return false, nil
	}
	return false, err
}

// errThere says that another process is connected: it still runs the message, or it sleeps, or it is dying, which may take
// seconds, and in which it may still answer.
var errThere = errors.New("the process that ran it is not gone yet")

// ended tells whether a process is certainly gone, or at least cut off from the servers.
func (l *lives) ended(ctx context.Context, id string) (bool, error) {
	for try := 0; ; try++ {
		answers, err := l.alive(ctx, id)
		switch {
		case id == l.id:
			return false, nil
		case answers, errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
			return false, errThere
		case err != nil || try > 0 && !l.settles():
			return err == nil, err
		}
		pause(ctx, askAgain)
	}
}

// more extends the suspicion while suspects are being run: others wait behind them for room.
func (l *lives) more() {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, d := range l.dead {
		if now.Before(d.until) {
			d.until = later(d.until, now.Add(l.span+2*time.Second))
			if most := d.found.Add(l.span + longest); d.until.After(most) {
				d.until = most
			}
			l.dead[id] = d
		}
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// suspect is what is known of a message that may have ended a process.
type suspect struct {
	ack.Record
	mu      sync.Mutex // held while the server is asked
	accused bool       // its record says that it runs alone
	marked  uint64     // the revision that says so; 0 when it is not known
}

// judge completes the record of a message that came again: whether it is a suspect, and whether it has ended a process.
// It is asked since then.
func (m *message) judge(ctx context.Context, rec ack.Record, since time.Time) (_ ack.Record, err error) {
	l := m.route.relay.lives.Load()
	if !m.route.guarded || l == nil {
		return rec, nil
	}
	switch {
	case rec.Solo != "":
		var ended bool
		ended, err = l.ended(ctx, rec.Solo)
		if errors.Is(err, errThere) && time.Since(since) > dying {
			err = nil // nobody is charged
		}
		if err != nil {
			return rec, err // it is asked again, in a second
		}
		if ended {
			now := time.Now()
			rec.Crashes++
			rec.LastFailure, rec.LastError = now, fmt.Sprintf("the process ended while only this message ran in it (%d)", rec.Crashes)
			if rec.FirstFailure.IsZero() {
				rec.FirstFailure = now
			}
			m.route.log.Error("a message ended the process that ran it", m.attrs("crashes", rec.Crashes, "max_crashes", m.route.cfg.Retry.MaxCrashes)...)
		}
		rec.Solo, rec.Suspect = "", true
	case rec.Crashes > 0 || rec.Suspect:
		rec.Suspect = true
	case !rec.Known() || rec.Deliveries > 0 && m.delivery.Deliveries > rec.Deliveries+1, rec.Kept && m.delivery.Deliveries > rec.Deliveries:
		rec.Suspect, err = l.recent(ctx)
	}
	return rec, err
}

// accuse writes down that the message is about to run and nothing else does. Without that the message must not start. It
// may block for some seconds.
func (m *message) accuse() error {
	rt := m.route
	l := rt.relay.lives.Load()
	l.more()
	if !rt.relay.solo.certain.Load() {
		rt.log.Warn("a suspect runs beside handlers that ignored their timeout: if the process ends, nobody is charged", m.attrs()...)
		return nil
	}
	s := m.suspect
	s.mu.Lock()
	defer s.mu.Unlock()
	rec := s.Record
	rec.Solo = l.id
	ctx, cancel := context.WithTimeout(rt.work, settleTimeout)
	defer cancel()
	var err error
	s.marked, err = m.source.records.Mark(ctx, m.delivery.Sequence, m.delivery.Deliveries, rec)
	if !errors.Is(err, ack.ErrElsewhere) && !s.accused { // with another error it may be stored nevertheless
		s.accused = true
		rt.relay.solo.accused.Add(1)
	}
	return err
}

// acquit takes that back: the handler has returned, and the process lives. What was written since stays: the attempt, when
// the handler had been given up.
func (m *message) acquit() {
	s := m.suspect
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.accused {
		return
	}
	s.accused = false
	rt, seq, here := m.route, m.delivery.Sequence, m.delivery.Deliveries
	defer rt.relay.solo.acquitted()
	for {
		// The slow paths end with the drain, but who is interrupted by that has ended nothing.
		work, limit := rt.work, settleTimeout
		if work.Err() != nil {
			work, limit = context.WithoutCancel(work), confirmTimeout
		}
		ctx, cancel := context.WithTimeout(work, limit)
		var err error
		if s.marked == 0 {
			s.marked, err = m.source.records.Marked(ctx, seq, here, rt.relay.lives.Load().id)
		}
		if s.marked > 0 {
			err = m.source.records.Unmark(ctx, seq, here, s.Record, s.marked)
		}
		cancel()
		if err == nil || m.delivery.Fenced() || rt.work.Err() != nil {
			return
		}
		if others, ok := rt.unacquitted.may(time.Now()); ok {
			rt.log.Warn("it is not yet written down that a suspect is innocent", m.attrs("others", others, "error", err)...)
		}
		pause(rt.work, time.Second)
	}
}
