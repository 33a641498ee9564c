package supervise

import (
	"iter"
	"slices"
)

// list is a doubly linked list whose nodes are fields of what it lists: nothing is allocated for it, and anything can be taken
// out of its middle. What can be in several lists at once has a node for each of them.
type list[T any] struct {
	front, back *node[T]
	n           int
}

type node[T any] struct {
	of         *T
	in         *list[T] // nil: in none
	prev, next *node[T]
}

// first is nil when the list is empty; so is last.
func (l *list[T]) first() *T {
	if l.front == nil {
		return nil
	}
	return l.front.of
}

func (l *list[T]) last() *T {
	if l.back == nil {
		return nil
	}
	return l.back.of
}

func (l *list[T]) has(n *node[T]) bool { return n.in == l }

// push puts of, whose node n is, at the end.
func (l *list[T]) push(n *node[T], of *T) { l.insert(n, of, l.back) }

// pushBehind puts of behind the last one that need not come after it.
func (l *list[T]) pushBehind(n *node[T], of *T, comesAfter func(other *T) bool) {
	behind := l.back
	for behind != nil && comesAfter(behind.of) {
		behind = behind.prev
	}
	l.insert(n, of, behind)
}

func (l *list[T]) insert(n *node[T], of *T, behind *node[T]) {
	n.of, n.in, n.prev = of, l, behind
	if behind == nil {
		n.next, l.front = l.front, n
	} else {
		n.next, behind.next = behind.next, n
	}
	if n.next == nil {
		l.back = n
	} else {
		n.next.prev = n
	}
	l.n++
}

// remove takes n out of the list. It does nothing when n is not in it.
func (l *list[T]) remove(n *node[T]) {
	if n.in != l {
		return
	}
	if n.prev == nil {
		l.front = n.next
	} else {
		n.prev.next = n.next
	}
	if n.next == nil {
		l.back = n.prev
	} else {
		n.next.prev = n.prev
	}
	*n = node[T]{}
	l.n--
}

// moveTo takes n out of the list that it is in and puts it at the end of another one; nil is none. It stays where it is in a list that it
// is in already.
func (n *node[T]) moveTo(l *list[T], of *T) {
	if n.in == l {
		return
	}
	if n.in != nil {
		n.in.remove(n)
	}
	if l != nil {
		l.push(n, of)
	}
}

// all are the things in the list, the first one first. The one at hand may be removed meanwhile.
func (l *list[T]) all() iter.Seq[*T] {
	return func(yield func(*T) bool) {
		for n := l.front; n != nil; {
			next := n.next
			if !yield(n.of) {
				return
			}
			n = next
		}
	}
}

// backward is all, the last one first.
func (l *list[T]) backward() iter.Seq[*T] {
	return func(yield func(*T) bool) {
		for n := l.back; n != nil; {
			next := n.prev
			if !yield(n.of) {
				return
			}
			n = next
		}
	}
}

// queue is a first-in-first-out queue of keys, in which each of them is once at most.
type queue struct {
	mark  mark
	items []*key
	head  int
}

// mark is a bit of key.marks, for each queue that the key is in.
type mark uint16

const (
	markFresh     mark = 1 << iota // to start a message that is here for the first time
	markReturned                   // to start another one
	markCrowded                    // to have one of the last slots
	markAlone                      // to run a message alone
	markRetry                      // to start a message that failed before
	markChildless                  // to have a child
	markFallback                   // to have a message handled by the fallback
	markLimited                    // to have room in a limit
	markHung                       // to start a message although its key hung before
)

func (q *queue) push(k *key) {
	if k.marks&q.mark == 0 {
		k.marks |= q.mark
		q.items = append(q.items, k)
	}
}

// insert is push for a queue that is sorted.
func (q *queue) insert(k *key, compare func(x, y *key) int) {
	if k.marks&q.mark != 0 {
		return
	}
	k.marks |= q.mark
	i, _ := slices.BinarySearchFunc(q.waiting(), k, compare)
	q.items = slices.Insert(q.items, q.head+i, k)
}

func (q *queue) len() int { return len(q.items) - q.head }

// waiting are the keys in the queue.
func (q *queue) waiting() []*key { return q.items[q.head:] }

// remove takes k out of the queue, and tells whether it was in it. A key near the head costs little.
func (q *queue) remove(k *key) bool {
	i := slices.Index(q.waiting(), k)
	switch {
	case i < 0:
		return false
	case i == 0:
		q.pop()
	default:
		q.takeAt(i)
	}
	return true
}

// takeAt takes out the key at that place; the first one is at 0.
func (q *queue) takeAt(i int) *key {
	if i == 0 {
		return q.pop()
	}
	k := q.items[q.head+i]
	k.marks &^= q.mark
	q.items = slices.Delete(q.items, q.head+i, q.head+i+1)
	return k
}

func (q *queue) pop() *key {
	k := q.items[q.head]
	k.marks &^= q.mark
	q.items[q.head] = nil
	q.head++
	if q.head == len(q.items) {
		q.items, q.head = q.items[:0], 0
	} else if q.head > 1024 && q.head*2 > len(q.items) {
		n := copy(q.items, q.items[q.head:])
		clear(q.items[n:])
		q.items, q.head = q.items[:n], 0
	}
	return k
}
