package ack

// sequences finds deliveries by their sequence in the stream. Each message passes through it, most in the order of the
// stream, for which a map would spend most of the time on hashing and on cache misses.
type sequences struct {
	buckets []*Delivery // a power of two of them
	shift   int         // its logarithm
	n       int
}

// firstBuckets is the logarithm of how many there are at first.
const firstBuckets = 6

func newSequences() sequences {
	return sequences{buckets: make([]*Delivery, 1<<firstBuckets), shift: firstBuckets}
}

// bucket puts neighbours side by side. Its second term spreads those that are a power of two apart.
func (t *sequences) bucket(seq uint64) **Delivery {
	return &t.buckets[(seq+seq>>t.shift)&uint64(len(t.buckets)-1)]
}

// get is nil when there is none.
func (t *sequences) get(seq uint64) *Delivery {
	d := *t.bucket(seq)
	for d != nil && d.Sequence != seq {
		d = d.sameBucket
	}
	return d
}

// put replaces the delivery that has the sequence.
func (t *sequences) put(d *Delivery) {
	if old := t.get(d.Sequence); old != nil {
		t.remove(old)
	}
	if t.n >= len(t.buckets) {
		t.grow()
	}
	b := t.bucket(d.Sequence)
	d.sameBucket, *b = *b, d
	t.n++
}

// remove does nothing when the sequence is another delivery's.
func (t *sequences) remove(d *Delivery) {
	for b := t.bucket(d.Sequence); *b != nil; b = &(*b).sameBucket {
		if *b == d {
			*b, d.sameBucket = d.sameBucket, nil
			t.n--
			return
		}
	}
}

// all is a copy.
func (t *sequences) all() []*Delivery {
	list := make([]*Delivery, 0, t.n)
	for _, d := range t.buckets {
		for ; d != nil; d = d.sameBucket {
			list = append(list, d)
		}
	}
	return list
}

func (t *sequences) grow() {
	list := t.all()
	t.shift++
	t.buckets = make([]*Delivery, 1<<t.shift)
	for _, d := range list {
		b := t.bucket(d.Sequence)
		d.sameBucket, *b = *b, d
	}
}
