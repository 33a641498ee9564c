package orders

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/kvwatch"
	"github.com/relaymq/relay/internal/transient"
)

// A watch of a bucket can end without a word: nats.go closes it, or goes on waiting for a bucket that was made anew. So the
// follower asks the server every few seconds whether there is more than it has seen, and begins anew if so.

const (
	// followCheck is how often it asks.
	followCheck = 5 * time.Second
	// followAgain is how long it waits after it could not begin.
	followAgain = 2 * time.Second
	// askTimeout bounds one request.
	askTimeout = 5 * time.Second
	// lookEvery is how often it is looked whether an order that was given is followed.
	lookEvery = 5 * time.Millisecond
)

// obeyed is how far the orders of operators are followed.
type obeyed struct {
	mu       sync.Mutex
	created  time.Time // of the bucket
	revision uint64
	left     map[string]int // formats of orders that are newer than this version, by their name in the bucket
	away     error          // why the bucket cannot be read
	awayAt   time.Time
}

func (o *obeyed) last() (created time.Time, revision uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.created, o.revision
}

// unread says what of the orders is not followed, and why.
func (o *obeyed) unread() (list []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.away != nil {
		list = append(list, fmt.Sprintf("cannot read the orders of operators since %s; the known ones stay in effect: %v",
			o.awayAt.UTC().Format(time.RFC3339), o.away))
	}
	for _, name := range slices.Sorted(maps.Keys(o.left)) {
		list = append(list, fmt.Sprintf("order %s has format %d, but this version knows only format %d; the order is not followed", name, o.left[name], Format))
	}
	return list
}

// lost notes that the bucket cannot be read, or with nil that it can. It reports whether that is new.
func (o *obeyed) lost(err error) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	changed := (o.away == nil) != (err == nil)
	if o.away == nil && err != nil {
		o.awayAt = time.Now()
	}
	o.away = err
	return changed
}

// Follower applies the orders of operators. Make it with [NewFollower].
type Follower struct {
	js       jetstream.JetStream
	service  string
	replicas int
	log      *slog.Logger
	apply    func(Order)

	obeyed  obeyed
	orders  *Bucket
	watcher jetstream.KeyWatcher
	updates <-chan jetstream.KeyValueEntry

	mu   sync.Mutex       // held where orders are applied
	held map[string]Order // pauses in force, by their name in the bucket
}

// NewFollower returns one for the bucket of a service, which it makes with so many replicas if it is missing. Apply is called with one order after
// the other, and must not block.
func NewFollower(js jetstream.JetStream, service string, replicas int, log *slog.Logger, apply func(Order)) *Follower {
	return &Follower{js: js, service: service, replicas: replicas, log: log, apply: apply, held: make(map[string]Order)}
}

// Follow applies the orders there are, and returns; setup bounds that. Later orders are applied until ctx is done, and wait waits for the end of that.
func (f *Follower) Follow(setup, ctx context.Context) (wait func(), err error) {
	if err := f.begin(setup, ctx); err != nil {
		return nil, err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.run(ctx)
	}()
	return func() { <-done }, nil
}

// Last says when the bucket was made that is followed, and up to which revision.
func (f *Follower) Last() (created time.Time, revision uint64) { return f.obeyed.last() }

// Give stores an order, with one that resumes a route for each of its keys that is paused too, and waits until it is followed here. It returns false when
// over is closed before that.
func (f *Follower) Give(ctx context.Context, order Order, over <-chan struct{}) (followed bool, err error) {
	bucket, err := Open(ctx, f.js, f.service, f.replicas)
	if err != nil {
		return false, err
	}
	if order.State == Running && order.Key == nil {
		if _, err = bucket.GiveToPausedKeys(ctx, order); err != nil {
			return false, err
		}
	}
	revision, err := bucket.Give(ctx, order)
	if err != nil {
		return false, err
	}
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for {
		if created, last := f.Last(); created.Equal(bucket.Created) && last >= revision {
			return true, nil
		}
		select {
		case <-look.C:
		case <-over:
			return false, nil
		case <-ctx.Done():
			return false, fmt.Errorf("the order is stored, but this instance does not follow it yet: %w", context.Cause(ctx))
		}
	}
}

// Unread says in one line each what of the orders is not followed, and why.
func (f *Follower) Unread() []string { return f.obeyed.unread() }

// Join has give called with each order that holds for a route which is new. Later ones are applied.
func (f *Follower) Join(route string, give func(Order)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, order := range f.held {
		if order.Route == route {
			give(order)
		}
	}
}

// begin watches the bucket, makes it if it is gone, and applies what is in it. What held before and is missing in a bucket
// that was made anew goes there: nobody said that it ends. What is missing in the same bucket was deleted, which ends it.
func (f *Follower) begin(setup, ctx context.Context) error {
	f.end()
	bucket, err := Open(setup, f.js, f.service, f.replicas)
	if err != nil {
		return err
	}
	watcher, err := bucket.KV.WatchAll(ctx)
	if err != nil {
		return fmt.Errorf("watching bucket %s: %w", bucket.KV.Bucket(), err)
	}
	anew := f.orders != nil && !f.orders.Created.Equal(bucket.Created)
	f.obeyed.begin(bucket.Created)
	f.orders, f.watcher, f.updates = bucket, watcher, watcher.Updates()
	there := make(map[string]bool)
	for {
		select {
		case <-setup.Done():
			f.end()
			return context.Cause(setup)
		case entry, open := <-f.updates:
			if !open {
				f.updates = nil
				return errors.New("the watch ended")
			}
			if entry != nil {
				there[entry.Key()] = true
				f.obey(setup, entry)
				continue
			}
		}
		break
	}
	for _, name := range slices.Sorted(maps.Keys(f.held)) {
		switch order := f.held[name]; {
		case there[name]:
		case anew:
			f.keep(setup, name, order)
		default:
			f.release(name)
		}
	}
	f.obeyed.reach(bucket.Last)
	return nil
}

// keep stores an order again, unless somebody else did.
func (f *Follower) keep(ctx context.Context, name string, order Order) {
	value, err := json.Marshal(order)
	if err == nil {
		_, err = f.orders.KV.Create(ctx, name, value)
	}
	if err != nil && !transient.Raced(err) {
		f.log.Error("the bucket of operators' orders was deleted and made again, and an order that this instance follows could not be stored in it; pause again whatever must stay paused",
			"bucket", f.orders.KV.Bucket(), "order", name, "error", err)
		return
	}
	f.log.Warn("the bucket of operators' orders was deleted and made again; stored the order that this instance follows in it", "bucket", f.orders.KV.Bucket(), "order", name)
}

// release ends an order that was deleted.
func (f *Follower) release(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	order := f.held[name]
	delete(f.held, name)
	order.State, order.Why, order.By, order.User, order.At = Running, "the order was deleted from its bucket", "", "", time.Now()
	f.apply(order)
}

func (f *Follower) end() {
	if f.watcher != nil {
		kvwatch.Stop(f.watcher)
	}
	f.watcher, f.updates = nil, nil
}

func (f *Follower) run(ctx context.Context) {
	defer f.end()
	tick := time.NewTicker(followCheck)
	defer tick.Stop()
	for ctx.Err() == nil {
		if f.updates == nil {
			f.again(ctx)
			continue
		}
		select {
		case <-ctx.Done():
		case entry, open := <-f.updates:
			switch {
			case !open:
				f.updates = nil
				f.log.Warn("the watch of the orders of operators ended; watching again", "bucket", f.orders.KV.Bucket())
			case entry != nil:
				f.obey(ctx, entry)
			}
		case <-tick.C:
			f.check(ctx)
		}
	}
}

// again begins anew, or waits a little if that fails.
func (f *Follower) again(ctx context.Context) {
	setup, cancel := context.WithTimeout(ctx, askTimeout)
	err := f.begin(setup, ctx)
	cancel()
	if ctx.Err() != nil {
		return
	}
	if f.obeyed.lost(err) {
		if err != nil {
			f.log.Error("cannot read orders of operators; the known ones stay in effect; retrying", "error", err)
		} else {
			f.log.Info("orders of operators can be read again", "bucket", f.orders.KV.Bucket())
		}
	}
	if err != nil {
		f.end()
		transient.Pause(ctx, followAgain)
	}
}

// check ends a watch that is not of the bucket that is there now, or did not tell what the bucket has.
func (f *Follower) check(ctx context.Context) {
	ask, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	stream, err := f.js.Stream(ask, "KV_"+f.orders.KV.Bucket())
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		f.log.Warn("the bucket of orders was deleted; making it again", "bucket", f.orders.KV.Bucket())
		f.end()
		return
	case err != nil:
		return // the connection, or the stream's leader: the watch goes on when they do
	}
	info := stream.CachedInfo()
	behind := f.orders.Last // what it had at the last check must have come by now
	f.orders.Last = info.State.LastSeq
	switch _, revision := f.obeyed.last(); {
	case !info.Created.Equal(f.orders.Created):
		f.log.Warn("the bucket of orders was deleted and created again; watching the new one", "bucket", f.orders.KV.Bucket())
		f.end()
	case revision < behind:
		f.log.Warn("the watch of the orders of operators is silent; watching again", "bucket", f.orders.KV.Bucket(), "seen", revision, "stored", behind)
		f.end()
	}
}

// obey applies one order.
func (f *Follower) obey(ctx context.Context, entry jetstream.KeyValueEntry) {
	name, o := entry.Key(), &f.obeyed
	defer o.reach(entry.Revision())
	var order Order
	if entry.Operation() != jetstream.KeyValuePut {
		o.leave(name, 0)
		if _, held := f.held[name]; held {
			f.release(name)
		}
		return
	}
	err := json.Unmarshal(entry.Value(), &order)
	if err == nil && order.Format <= Format && order.BucketKey() != name {
		err = errors.New("it is not an order of relay: somebody else wrote it")
	}
	if err != nil {
		f.log.Error("an order of an operator cannot be read", "order", name, "error", err)
		f.restore(ctx, name, entry.Revision())
		return
	}
	if order.Format > Format {
		o.leave(name, order.Format)
		f.log.Error("an order of an operator was written by a newer relay; it is not followed", "order", name, "format", order.Format, "known", Format)
		return
	}
	o.leave(name, 0)
	f.mu.Lock()
	defer f.mu.Unlock()
	if delete(f.held, name); order.State == Paused {
		f.held[name] = order
	}
	f.apply(order)
}

// restore stores an order again that holds here, in place of what is none. Whoever may publish to a subject of any stream can have the server
// write its confirmation there, as the reply to a message.
func (f *Follower) restore(ctx context.Context, name string, revision uint64) {
	order, held := f.held[name]
	if !held {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	value, err := json.Marshal(order)
	if err == nil {
		_, err = f.orders.KV.Update(ctx, name, value, revision)
	}
	switch {
	case err == nil:
		f.log.Warn("an operator's order could not be read in the bucket; stored the one that this instance follows again", "bucket", f.orders.KV.Bucket(), "order", name)
	case !transient.Raced(err): // else another instance was faster, or an operator
		f.log.Error("an operator's order could not be read in the bucket, and the one that this instance follows could not be stored there; give the order again", "bucket", f.orders.KV.Bucket(), "order", name, "error", err)
	}
}

func (o *obeyed) begin(created time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.created.Equal(created) {
		o.created, o.revision, o.left = created, 0, nil
	}
}

func (o *obeyed) reach(revision uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.revision = max(o.revision, revision)
}

// leave notes the format of an order that is not followed; 0: it is.
func (o *obeyed) leave(name string, format int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case format == 0:
		delete(o.left, name)
	case o.left == nil:
		o.left = map[string]int{name: format}
	default:
		o.left[name] = format
	}
}
