package supervise

import "github.com/relaymq/relay/internal/limit"

// A bucket of a limit that is for a value, a tenant say, may have no room for a long time. What needs it must not hold the window, where
// others would wait behind it: it waits in the stash, in the line of its key, and what is too many goes aside, on a shelf of the bucket. As
// the line gets shorter messages are called back from there, the oldest first.

// lineAt is how many keys wait in memory for a bucket while messages are aside for it.
const lineAt = 64

// placesOf are what a message of k needs to start; nil without limits.
func (l *limited) placesOf(k *key, m *Message) *limit.Places {
	if l == nil {
		return nil
	}
	if k.places == nil {
		if k.places = l.common; k.places == nil {
			k.places = l.places(m)
		}
	}
	return k.places
}

// standsAt is the bucket of a value at which others stand before a message of k that arrives now; nil when there is none.
func (l *limited) standsAt(t *turn, k *key, m *Message) *limit.Bucket {
	if l == nil || l.Also == nil {
		return nil
	}
	for b := range l.placesOf(k, m).Buckets() {
		if b.Shared() {
			continue
		}
		if p := l.waiting[b]; p != nil && p.keys.len() > 0 {
			return b
		}
		if len(t.aside.buckets) > 0 && !m.called {
			if s := t.aside.buckets[b.Name()]; s != nil && s.n > 0 {
				return b
			}
		}
	}
	return nil
}

// standAt has a message of k wait at a bucket behind the others.
func (l *limited) standAt(t *turn, b *limit.Bucket, k *key, m *Message) {
	p := l.waiting[b]
	if p != nil && (m.called || t.aside.buckets[b.Name()] == nil && 2*t.stash.messages < t.stash.most.messages) {
		t.stash.hold(t, k, m)
		l.stand(p, k)
		t.stash.bound(t)
		return
	}
	a := &t.aside
	s := a.buckets[b.Name()]
	if s == nil {
		if a.buckets == nil {
			a.buckets = make(map[string]*shelf)
		}
		s = &shelf{name: b.Name()}
		a.buckets[s.name] = s
	}
	s.bucket = b
	t.aside.putOn(t, s, k, m, t.aside.until(m, t.route.waitOf(k)), "limit "+s.name+" has no room", nil)
	if s.n+s.called == 0 {
		delete(a.buckets, s.name) // it is not kept in mind
	}
	a.offer(s)
}

// wantsAt tells whether the line at a bucket is short. While the stash has little room, whoever filled it, it is to be shorter.
func (l *limited) wantsAt(t *turn, s *shelf) bool {
	n, most := s.called, lineAt
	if p := l.waiting[s.bucket]; p != nil {
		n += p.keys.len()
	}
	if 4*t.stash.room() <= t.stash.messages {
		most /= 8
	}
	return n < most
}

// offerAt lets messages be called back that are aside because of a bucket.
func (a *aside) offerAt(b *limit.Bucket) {
	if len(a.buckets) > 0 && !b.Shared() {
		if s := a.buckets[b.Name()]; s != nil {
			a.offer(s)
		}
	}
}

// offer lets messages of a shelf be called back.
func (a *aside) offer(s *shelf) {
	if !s.opened && s.n > 0 {
		s.opened = true
		if s.name == "" {
			a.open = append(a.open, s)
		} else {
			a.openAt = append(a.openAt, s)
		}
	}
}
