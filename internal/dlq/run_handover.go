package dlq

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"

	"github.com/relaymq/relay/internal/failpoint"
	"github.com/relaymq/relay/internal/permission"
)

// flight is one hand-over under way.
type flight struct {
	item      item
	read      *stored       // the entry, when it was read with others; nil: it is to be read
	ready     chan struct{} // closed when it is prepared
	handOver  handOver
	err       error
	rival     bool          // another job handed it over
	confirmed chan struct{} // closed when it is confirmed or given up
	free      func()        // gives back its bytes
}

// done lets go of the message, which nobody needs any more.
func (f *flight) done() {
	f.read, f.handOver.msg = nil, nil
	f.free()
}

// maxAhead bounds the bytes of what is read ahead or handed over without a confirmation yet: a hundred large messages at once
// would take gigabytes. One message is always let in.
const maxAhead = 64 << 20

// weight is what an entry counts for: its body, unless it stays in the object store, and its headers, about.
func (r *Run) weight(it item) int64 {
	const headers = 2 << 10
	size := int64(it.size)
	if r.spec.Subject == "" && r.Edited == nil && size > r.Store.js.Conn().MaxPayload() {
		size = 0
	}
	return min(size+headers, r.ahead)
}

// handOver hands items over in their order, and returns when all of them are settled.
func (r *Run) handOver(ctx context.Context, items []item, limit *rate.Limiter, stop context.CancelCauseFunc) error {
	prepared := make(chan *flight, readAhead)
	unused := make(chan struct{}, readAhead)
	room := semaphore.NewWeighted(r.ahead)
	var work sync.WaitGroup
	defer work.Wait()
	// What was begun is completed: each step has its own time-out. To what the server does not permit no answer comes.
	finish, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	defer giveUp()
	defer context.AfterFunc(ctx, func() {
		if v := (*permission.Error)(nil); errors.As(context.Cause(ctx), &v) {
			time.AfterFunc(time.Second, giveUp)
		}
	})()
	work.Go(func() {
		defer close(prepared)
		r.feed(ctx, items, turns{limit, unused}, room, func(f *flight) bool {
			select {
			case prepared <- f: // bounds what is read ahead
			case <-ctx.Done():
				return false
			}
			work.Go(func() {
				defer close(f.ready)
				f.handOver, f.err = r.prepare(ctx, f)
			})
			return true
		})
	})
	slots := make(chan struct{}, inFlight)
	last := make(map[uint64]*flight) // of each key
	var mu sync.Mutex                // of last
	for f := range prepared {
		<-f.ready
		if ctx.Err() != nil {
			continue // nothing new
		}
		if f.err != nil {
			select {
			case unused <- struct{}{}:
			default:
			}
			f.done()
			if err := r.settle(f, f.err); err != nil {
				stop(err)
			}
			continue
		}
		mu.Lock()
		before := last[f.item.key]
		last[f.item.key] = f
		mu.Unlock()
		slots <- struct{}{}
		work.Go(func() {
			defer func() { <-slots }()
			if before != nil {
				<-before.confirmed // which was begun earlier, so nobody waits for one that waits for a slot
			}
			err := context.Cause(ctx) // nothing new
			began := err == nil
			if began {
				failpoint.At("handing over")
				future, failed := r.Store.js.PublishMsgAsync(f.handOver.msg)
				err = r.confirm(ctx, finish, f, future, failed)
			}
			mu.Lock()
			if last[f.item.key] == f {
				delete(last, f.item.key)
			}
			mu.Unlock()
			f.done()
			close(f.confirmed)
			if !began {
				return
			}
			if err == nil {
				failpoint.At("handed over")
				err = r.remove(ctx, finish, f)
				failpoint.At("removed")
			}
			if err := r.settle(f, err); err != nil {
				stop(err)
			}
		})
	}
	work.Wait()
	return context.Cause(ctx)
}

// feed yields items when it is their turn, until yield returns false or ctx ends. Those of the next moment are read together.
func (r *Run) feed(ctx context.Context, items []item, turns turns, room *semaphore.Weighted, yield func(*flight) bool) {
	together, turn := maxTogether, 1
	if r.spec.Rate > 0 {
		// No entry is read much longer than that before its turn: somebody else may replay or discard it meanwhile.
		together = min(together, max(1, int(r.spec.Rate*readFor.Seconds())))
		// A timer for each entry would cost more than the entry.
		turn = max(1, int(r.spec.Rate*turnEvery.Seconds()))
	}
	granted := 0
	// The next ones are read while these are handed over.
	type batch struct {
		items []item
		read  map[uint64]stored
	}
	batches := make(chan batch)
	reading, done := context.WithCancel(ctx)
	var reader sync.WaitGroup
	defer reader.Wait()
	defer done()
	reader.Go(func() {
		defer close(batches)
		for len(items) > 0 {
			// Half of the room: what is read waits for nothing but what is handed over already.
			n, size := 1, r.weight(items[0])
			for n < min(together, len(items)) && size+r.weight(items[n]) <= min(pageBytes, r.ahead/2) {
				size += r.weight(items[n])
				n++
			}
			chunk := items[:n]
			items = items[n:]
			for _, it := range chunk {
				if room.Acquire(reading, r.weight(it)) != nil {
					return
				}
			}
			select {
			case batches <- batch{chunk, r.Store.getTogether(reading, chunk)}:
			case <-reading.Done():
				return
			}
		}
	})
	for chunk := range batches {
		for i, it := range chunk.items {
			if r.spec.StopAfter > 0 && r.await(ctx, maxOpen) != nil {
				return
			}
			if granted == 0 {
				if granted = turns.take(ctx, min(turn, len(chunk.items)-i)); granted == 0 {
					return
				}
			}
			granted--
			f := &flight{item: it, ready: make(chan struct{}), confirmed: make(chan struct{})}
			weight := r.weight(it)
			f.free = sync.OnceFunc(func() { room.Release(weight) })
			if m, ok := chunk.read[it.number]; ok {
				f.read = &m
			}
			if !yield(f) {
				return
			}
		}
	}
}

// turns are those that the rate of a job permits. An entry that turns out to stay, or to be gone, leaves its turn unused, and the next one gets it: however
// many of these are in front, the rate is that of what is handed over.
type turns struct {
	limit  *rate.Limiter
	unused <-chan struct{}
}

// take waits for n turns, or for one that is unused, and returns how many these are; 0 when ctx ended.
func (t turns) take(ctx context.Context, n int) int {
	select {
	case <-t.unused:
		return 1
	default:
	}
	reserved := t.limit.ReserveN(time.Now(), n)
	delay := reserved.Delay()
	if delay == 0 && ctx.Err() == nil {
		return n
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return n
	case <-t.unused:
		reserved.Cancel()
		return 1
	case <-ctx.Done():
		reserved.Cancel()
		return 0
	}
}

// stubborn repeats what the server could not do just now.
func (r *Run) stubborn(ctx, finish context.Context, f func(context.Context) error) error {
	pause := 100 * time.Millisecond
	for tries := 0; ; tries++ {
		err := f(finish)
		if err == nil || final(err) || tries >= maxTries || ctx.Err() != nil {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, 2*time.Second)
	}
}

// maxTries with their pauses take half a minute: longer than an election, or a restart of the server.
const maxTries = 16

// final tells whether trying again would give the same.
func final(err error) bool {
	var bad *EntryError
	return refusal(err) || errors.As(err, &bad) || errors.Is(err, ErrNotFound) || errors.Is(err, ErrWrongStream)
}

// refusal tells whether an entry cannot be handed over while others can.
func refusal(err error) bool {
	var bad *EntryError
	return errors.Is(err, ErrRefused) || errors.Is(err, ErrTooLarge) || errors.Is(err, ErrNoBody) || errors.As(err, &bad) && errors.Is(err, ErrNoBody)
}

func (r *Run) target() Target {
	return Target{Subject: r.spec.Subject, Job: r.spec.ID, Edited: r.Edited}
}

func (r *Run) prepare(ctx context.Context, f *flight) (h handOver, err error) {
	meant := func(storedSubject string, _ Entry) bool { return hash(storedSubject) == f.item.stored }
	err = r.stubborn(ctx, ctx, func(ctx context.Context) error {
		m := f.read
		if m == nil {
			now, err := r.Store.get(ctx, f.item.number)
			if err != nil {
				return err
			}
			m = &now
		}
		f.read = nil // a second try reads it again
		h, err = r.Store.prepare(ctx, *m, meant, r.target())
		return err
	})
	if err == nil && r.spec.Waits() {
		r.mu.Lock()
		r.tokens[hash(h.token)] = struct{}{}
		r.mu.Unlock()
	}
	return h, err
}

// confirm waits for the answer to a publish, and publishes again when there is none.
func (r *Run) confirm(ctx, finish context.Context, f *flight, future jetstream.PubAckFuture, err error) error {
	if err == nil {
		timer := time.NewTimer(r.Store.timeout)
		defer timer.Stop()
		select {
		case got := <-future.Ok():
			// A job that was resumed may have handed it over itself before. So may this one, when it publishes again below.
			f.rival = got.Duplicate && !r.resumed
			return f.handOver.confirmed(got, nil)
		case err = <-future.Err():
		case <-timer.C:
			err = nats.ErrTimeout
		case <-finish.Done():
			err = finish.Err()
		}
	}
	var api *jetstream.APIError
	lost := !errors.As(err, &api) // the server may have it nevertheless
	err = f.handOver.confirmed(nil, err)
	if final(err) || r.spec.Subject != "" && errors.Is(err, ErrNoStream) {
		return err
	}
	return r.stubborn(ctx, finish, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, r.Store.timeout)
		defer cancel()
		// The message id makes it the same message.
		got, err := r.Store.js.PublishMsg(ctx, f.handOver.msg)
		if err == nil && got.Duplicate && f.handOver.edited && lost {
			if err := r.Store.own(ctx, f.handOver, got); err != nil {
				return err
			}
			got.Duplicate = false
		}
		lost = lost || !errors.As(err, &api)
		return f.handOver.confirmed(got, err)
	})
}

func (r *Run) remove(ctx, finish context.Context, f *flight) error {
	return r.stubborn(ctx, finish, func(ctx context.Context) error { return r.Store.handedOver(ctx, f.handOver) })
}

// settle notes what became of an entry. An error is one that ends the job.
func (r *Run) settle(f *flight, err error) error {
	var told *Refusal
	r.mu.Lock()
	var bad *EntryError
	switch {
	case f.rival && (err == nil || errors.Is(err, ErrNotRemoved)): // its verdict belongs to the other job
		r.job.Gone++
		delete(r.tokens, hash(f.handOver.token))
	case err == nil:
		r.job.Handed++
		r.sent++
	case errors.Is(err, ErrNotRemoved):
		r.job.Handed++
	case errors.Is(err, ErrNotFound):
		r.job.Gone++
		err = nil
	case refusal(err), errors.As(err, &bad), r.spec.Subject != "" && errors.Is(err, ErrNoStream):
		told = &Refusal{f.item.number, err.Error()}
		r.job.Refused++
		if r.job.Reasons == nil {
			r.job.Reasons = make(map[string]int)
		}
		countReason(r.job.Reasons, told.Why)
		if len(r.job.Refusals) < maxRefusals {
			r.job.Refusals = append(r.job.Refusals, *told)
		}
		err = nil
	}
	r.notify()
	r.mu.Unlock()
	if told != nil && r.Refused != nil {
		r.telling.Lock()
		defer r.telling.Unlock()
		r.Refused(*told)
	}
	return err
}
