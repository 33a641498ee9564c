package main

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// histogram counts durations in buckets that are at most 1.6 % wide.
type histogram struct{ buckets [64 << subBits]atomic.Uint64 }

const subBits = 6

func newHistogram() *histogram { return new(histogram) }

func (h *histogram) add(d time.Duration) {
	v := uint64(max(d, 0)) + 1<<subBits
	shift := bits.Len64(v) - 1 - subBits
	h.buckets[shift<<subBits+int(v>>shift)-1<<subBits].Add(1)
}

// floorOf is the least duration of a bucket.
func floorOf(i int) time.Duration {
	shift := i >> subBits
	return time.Duration(uint64(i&(1<<subBits-1)|1<<subBits)<<shift - 1<<subBits)
}

// quantiles of a histogram.
type quantiles struct {
	N                   uint64
	P50, P99, P999, Max time.Duration
}

func (h *histogram) quantiles() *quantiles {
	q := &quantiles{}
	for i := range h.buckets {
		if n := h.buckets[i].Load(); n > 0 {
			q.N += n
			q.Max = floorOf(i)
		}
	}
	at := func(f float64) time.Duration {
		want, seen := uint64(f*float64(q.N)), uint64(0)
		for i := range h.buckets {
			if seen += h.buckets[i].Load(); seen > want {
				return floorOf(i)
			}
		}
		return q.Max
	}
	q.P50, q.P99, q.P999 = at(.5), at(.99), at(.999)
	return q
}
