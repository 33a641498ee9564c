package suspects

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/beat"
	"github.com/relaymq/relay/internal/kvwatch"
	"github.com/relaymq/relay/internal/transient"
)

// Each process watches over the next one, by their ids: it asks it twice a second whether it is connected. When it is not for goneAfter, it died, and
// the one who asked says so in its entry. That succeeds for one process only. So a death is noticed by one, at once, whatever the number of
// processes.

const (
	watchEvery = 500 * time.Millisecond
	// watchSoon is how often one is asked that is not connected, and goneAfter for how long it must not be: clients whose server ended are at
	// another one sooner. See reconnectWait of the program.
	watchSoon = 100 * time.Millisecond
	goneAfter = time.Second
	// buriedFor is for how long the entry of one that died stays: what it had in hand may have to be run alone.
	buriedFor = 10 * time.Minute
	// mostFrozen is how many processes that are connected and do not answer are passed over.
	mostFrozen = 3
)

// Watch calls died with the names of processes that ended without a word, until ctx is done. Each is told to one process only.
func (l *Lives) Watch(ctx context.Context, died func(ctx context.Context, instances []string)) {
	for ctx.Err() == nil {
		l.watch(ctx, died)
		transient.Pause(ctx, maxLook)
	}
}

func (l *Lives) watch(ctx context.Context, died func(ctx context.Context, instances []string)) {
	w, err := l.kv.WatchAll(ctx)
	if err != nil {
		return
	}
	defer kvwatch.Stop(w)
	ring := ring{l: l, entries: make(map[string]entry), silent: make(map[string]time.Time), buried: make(map[string]time.Time)}
	next := time.NewTimer(beat.Until(watchEvery))
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case e, open := <-w.Updates():
			if !open {
				return
			}
			if e == nil {
				continue // all that was there has come
			}
			var of entry
			if json.Unmarshal(e.Value(), &of) != nil {
				of = entry{Dead: true} // deleted
			}
			of.revision = e.Revision()
			if e.Key() == l.id && of.Dead && e.Operation() == jetstream.KeyValuePut {
				_ = l.renew(ctx) // it was cut off for a while
			}
			ring.note(e.Key(), of)
		case <-next.C:
			again := watchEvery
			if !l.settles() {
				if dead := ring.ask(ctx); len(dead) > 0 {
					died(ctx, dead)
				}
				ring.forget(ctx)
				if len(ring.silent) > 0 {
					again = watchSoon
				}
			}
			next.Reset(beat.Until(again))
		}
	}
}

// ring is what a process knows of the others.
type ring struct {
	l       *Lives
	entries map[string]entry     // that are not dead
	silent  map[string]time.Time // since when they are not connected
	buried  map[string]time.Time // by this process, and when
}

func (r *ring) note(id string, e entry) {
	if e.Dead {
		delete(r.entries, id)
		delete(r.silent, id)
	} else {
		r.entries[id] = e
	}
	var ids []string
	for id := range r.entries {
		if id != r.l.id {
			ids = append(ids, id)
		}
	}
	r.l.living.Store(&ids)
}

// ask asks those that follow this process, up to the first one that lives, and returns the names of those that died.
func (r *ring) ask(ctx context.Context) (dead []string) {
	ids := []string{r.l.id}
	for id := range r.entries {
		if id != r.l.id {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	own, frozen := slices.Index(ids, r.l.id), 0
	silent := make(map[string]time.Time)
	for _, id := range slices.Concat(ids[own+1:], ids[:own]) {
		answers, err := r.l.alive(ctx, id)
		if answers {
			break
		}
		if err != nil {
			if frozen++; ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) || frozen > mostFrozen {
				break
			}
			continue
		}
		since, known := r.silent[id]
		switch {
		case !known:
			silent[id] = time.Now()
		case time.Since(since) < goneAfter:
			silent[id] = since
		case r.bury(ctx, id):
			dead = append(dead, r.entries[id].Instance)
			r.note(id, entry{Dead: true})
		case r.l.ended(ctx, id):
			r.note(id, entry{Dead: true})
		}
	}
	r.silent = silent
	return dead
}

// bury says in the entry of a process that it died. It returns false when another one did, or the process is back.
func (r *ring) bury(ctx context.Context, id string) bool {
	e := r.entries[id]
	e.Dead = true
	value, err := json.Marshal(e)
	if err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	if _, err = r.l.kv.Update(ctx, id, value, e.revision); err != nil {
		return false
	}
	r.buried[id] = time.Now()
	return true
}

// ended tells whether a process has no entry any more, or one that says that it died. Watchers are told a moment later, or
// not at all when an earlier version took the entry away.
func (l *Lives) ended(ctx context.Context, id string) bool {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	e, err := l.kv.Get(ctx, id)
	if err != nil {
		return errors.Is(err, jetstream.ErrKeyNotFound)
	}
	var of entry
	return json.Unmarshal(e.Value(), &of) == nil && of.Dead
}

// forget removes the entries of those that this process found dead a while ago. Others lapse after a day.
func (r *ring) forget(ctx context.Context) {
	for id, at := range r.buried {
		if time.Since(at) >= buriedFor {
			delete(r.buried, id)
			_ = r.l.remove(ctx, id)
		}
	}
}

// Others is how many other processes live, as far as this one knows.
func (l *Lives) Others() int {
	if list := l.living.Load(); list != nil {
		return len(*list)
	}
	return 0
}

// First tells whether this process is the one that does what one is enough for, as far as it knows: every living process comes to the same
// answer, but for moments after one came or went.
func (l *Lives) First() bool {
	list := l.living.Load()
	return list == nil || !slices.ContainsFunc(*list, func(id string) bool { return id < l.id })
}

// AnyBefore tells whether a process that comes before this one in the order of [Lives.First] gives this answer. One that does not answer in time
// does not.
func (l *Lives) AnyBefore(ctx context.Context, question []byte, answer string) bool {
	list := l.living.Load()
	return list != nil && slices.ContainsFunc(*list, func(id string) bool {
		if id > l.id {
			return false
		}
		ctx, cancel := context.WithTimeout(ctx, answerWithin)
		defer cancel()
		m, err := l.cfg.Conn.RequestWithContext(ctx, l.subject(id), question)
		return err == nil && string(m.Data) == answer
	})
}

// AskAll puts a question to all other processes that live, and returns the answers. With an error one of them has not answered.
func (l *Lives) AskAll(ctx context.Context, question []byte) (answers [][]byte, err error) {
	var ids []string
	if list := l.living.Load(); list != nil {
		ids = *list
	}
	var mu sync.Mutex
	var asking sync.WaitGroup
	for _, id := range ids {
		asking.Go(func() {
			call, cancel := context.WithTimeout(ctx, answerWithin)
			defer cancel()
			m, e := l.cfg.Conn.RequestWithContext(call, l.subject(id), question)
			if errors.Is(e, nats.ErrNoResponders) && l.ended(ctx, id) {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			switch {
			case e != nil && !errors.Is(e, nats.ErrNoResponders):
				err = fmt.Errorf("process %s: %w", id, e)
			case e != nil:
				err = fmt.Errorf("process %s is not connected", id)
			case len(m.Data) == 0:
				err = fmt.Errorf("process %s does not report that: it runs an earlier version", id)
			default:
				answers = append(answers, m.Data)
			}
		})
	}
	asking.Wait()
	return answers, err
}
