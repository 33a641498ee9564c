package fleet

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/kvwatch"
	"github.com/relaymq/relay/internal/transient"
)

// Member is an instance of the fleet.
type Member struct {
	Session  string          `json:"session"`
	Instance string          `json:"instance"`
	Version  string          `json:"version"`
	Since    time.Time       `json:"since"` // of the session
	State    json.RawMessage `json:"state,omitempty"`
	Wants    map[string]int  `json:"wants,omitempty"` // parts of limits
	// Gone is when the session ended; zero while it lives. Those that ended are remembered for an hour.
	Gone time.Time `json:"gone,omitzero"`

	revision uint64
	seen     time.Time // when this record came
	waited   map[string]int64
	told     uint64
	inbox    string
}

// owner is a claim as it is stored.
type owner struct {
	Format   int    `json:"format"`
	Session  string `json:"session"`
	Instance string `json:"instance"`

	revision uint64
}

// view is what the watch of the bucket has told.
type view struct {
	sessions map[string]Member
	gone     []Member
	claims   map[string]owner // by resource
	limits   map[string]allotments
	ended    map[string]time.Time // sessions of which the bucket said that they are over, and when it did
	ending   map[string]uint64    // the revisions of sessions that this instance has tried to end
	whole    bool                 // everything that was there when the watch began has come
	since    time.Time            // of that
}

func newView() view {
	return view{sessions: make(map[string]Member), claims: make(map[string]owner), limits: make(map[string]allotments), ended: make(map[string]time.Time), ending: make(map[string]uint64)}
}

// over tells whether a session has ended. What is there when a watch begins may lack a session that was written again at that moment: of
// one that is missing without a word, a renewal would come within a lease.
func (v *view) over(id string, lease time.Duration, now time.Time) bool {
	if _, lives := v.sessions[id]; lives {
		return false
	}
	_, told := v.ended[id]
	return told || now.Sub(v.since) >= lease
}

// remembered is for how long a member that is gone is told of.
const remembered = time.Hour

const (
	sessionPrefix = "s."
	claimPrefix   = "c."
	limitPrefix   = "l."
)

func sessionKey(id string) string     { return sessionPrefix + id }
func claimKey(resource string) string { return claimPrefix + resource }

// watch follows the bucket until ctx is done. A watch can end without a word, or wait for a bucket that was made anew, so its end
// and the silence of the instance's own writes begin a new one.
func (f *Fleet) watch(ctx context.Context) {
	var tries transient.Spans
	for ctx.Err() == nil {
		select { // it was for the watch before
		case <-f.rewatch:
		default:
		}
		if f.watchOnce(ctx, tries.Next(f.cfg.Lease/4, 4*f.cfg.Lease)) {
			tries = transient.Spans{}
		}
		select {
		case <-ctx.Done():
		case <-time.After(f.cfg.Lease / 8):
		}
	}
}

// watchOnce returns false when no watch began within a span.
func (f *Fleet) watchOnce(ctx context.Context, span time.Duration) (began bool) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	late := time.AfterFunc(span, cancel)
	w, err := f.kv.WatchAll(ctx)
	if err != nil {
		return false
	}
	defer kvwatch.Stop(w)
	if !late.Stop() {
		return false
	}
	f.read(ctx, w)
	return true
}

func (f *Fleet) read(ctx context.Context, w jetstream.KeyWatcher) {
	next := newView()
	silence := time.NewTimer(2 * f.cfg.Lease)
	defer silence.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-silence.C: // not even this instance's session came
			return
		case <-f.rewatch:
			return
		case entry, open := <-w.Updates():
			if !open {
				return
			}
			silence.Reset(2 * f.cfg.Lease)
			f.mu.Lock()
			switch {
			case entry == nil: // all that was there has come
				next.whole, next.since = true, time.Now()
				next.gone = f.view.gone
				for id, m := range f.view.sessions {
					switch n, lives := next.sessions[id]; {
					case !lives:
						next.leave(m)
					case n.revision == m.revision:
						next.sessions[id] = m // seen before
					}
				}
				f.view = next
			case next.whole:
				f.view.apply(entry)
			default:
				next.apply(entry)
			}
			if next.whole {
				f.signal()
			}
			f.mu.Unlock()
		}
	}
}

func (v *view) apply(entry jetstream.KeyValueEntry) {
	put := entry.Operation() == jetstream.KeyValuePut
	if id, ok := strings.CutPrefix(entry.Key(), sessionPrefix); ok {
		if !put {
			v.end(id)
			return
		}
		var r record
		_ = json.Unmarshal(entry.Value(), &r) // one that cannot be read lives all the same
		v.sessions[id] = Member{
			Session: id, Instance: r.Instance, Version: r.Version, Since: r.Since, State: r.State, Wants: r.Wants,
			revision: entry.Revision(), seen: time.Now(), waited: r.Waited, told: r.Told, inbox: r.Inbox,
		}
	}
	if resource, ok := strings.CutPrefix(entry.Key(), claimPrefix); ok {
		o := owner{revision: entry.Revision()}
		if put {
			_ = json.Unmarshal(entry.Value(), &o) // one that cannot be read names no session that lives, and is free
			o.revision = entry.Revision()
		}
		v.claims[resource] = o
	}
	if limit, ok := strings.CutPrefix(entry.Key(), limitPrefix); ok {
		var a allotments
		if put {
			_ = json.Unmarshal(entry.Value(), &a) // of one that cannot be read nobody has anything
			maps.DeleteFunc(a.Have, func(_ string, n int) bool { return n < 1 })
		}
		a.revision = entry.Revision()
		v.limits[limit] = a
	}
}

// end notes that the bucket has said that a session is over.
func (v *view) end(id string) {
	v.ended[id] = time.Now()
	delete(v.ending, id)
	if m, lived := v.sessions[id]; lived {
		delete(v.sessions, id)
		v.leave(m)
	}
}

func (v *view) leave(m Member) {
	m.Gone = time.Now()
	maps.DeleteFunc(v.ended, func(_ string, at time.Time) bool { return time.Since(at) > remembered })
	v.gone = slices.DeleteFunc(append(v.gone, m), func(m Member) bool { return time.Since(m.Gone) > remembered })
	if over := len(v.gone) - 100; over > 0 {
		v.gone = slices.Delete(v.gone, 0, over)
	}
}

// Members are the instances with a session, by name, and after them those whose session ended within the last hour, the latest first, but for
// instances that are back. whole is false while the bucket has not told of all of them.
func (f *Fleet) Members() (members []Member, whole bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	back := make(map[string]bool)
	for _, m := range f.view.sessions {
		members = append(members, m)
		back[m.Instance] = true
	}
	slices.SortFunc(members, func(a, b Member) int { return strings.Compare(a.Instance+" "+a.Session, b.Instance+" "+b.Session) })
	for _, m := range slices.Backward(f.view.gone) {
		if !back[m.Instance] && time.Since(m.Gone) < remembered {
			members = append(members, m)
			back[m.Instance] = true
		}
	}
	return members, f.view.whole
}
