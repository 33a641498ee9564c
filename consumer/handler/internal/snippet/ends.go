package snippet

import "unicode/utf8"

const (
	maxHead = 1 << 10
	maxTail = 2 << 10
)

// Ends keeps the first KiB and the last 2 KiB of what is written to it: a program says at either end why it failed. Node.js writes the error
// first and then its stack, Python writes the stack first. Both fit into an error that travels with a message (4 KiB).
type Ends struct {
	head, tail []byte
	left       bool // something between the two was left out
}

// Reset forgets what was written.
func (e *Ends) Reset() { e.head, e.tail, e.left = e.head[:0], e.tail[:0], false }

// Empty tells whether nothing was written.
func (e *Ends) Empty() bool { return len(e.head) == 0 }

func (e *Ends) Write(b []byte) (int, error) {
	all := len(b)
	n := min(len(b), maxHead-len(e.head))
	e.head, b = append(e.head, b[:n]...), b[n:]
	if over := len(e.tail) + len(b) - maxTail; over > 0 {
		e.left = true
		kept := min(over, len(e.tail))
		e.tail = e.tail[:copy(e.tail, e.tail[kept:])]
		b = b[over-kept:]
	}
	e.tail = append(e.tail, b...)
	return all, nil
}

// String is what was kept, with " … " where something was left out.
func (e *Ends) String() string {
	if !e.left {
		return clean(append(e.head[:len(e.head):len(e.head)], e.tail...))
	}
	return clean(wholeEnd(e.head)) + " … " + clean(e.tail[cut(e.tail, 0):])
}

// wholeEnd leaves out a character whose end is missing.
func wholeEnd(b []byte) []byte {
	for i := len(b) - 1; i >= max(0, len(b)-utf8.UTFMax); i-- {
		if utf8.RuneStart(b[i]) {
			if !utf8.FullRune(b[i:]) {
				return b[:i]
			}
			break
		}
	}
	return b
}
