package worker

import (
	"bytes"
	"errors"
	"io"
)

var errTooLong = errors.New("too long")

const (
	firstBuffer = 4 << 10
	keptBuffer  = 64 << 10 // a larger one is let go when it is empty
)

// lines reads lines of at most max bytes. Memory is taken as lines need it, and given back after.
type lines struct {
	from io.Reader
	max  int
	buf  []byte
	r, w int // what was read and not used
	seen int // no newline up to here
}

// next returns the next line without its end. It is good until the following call. An error of the reader leaves what was read of
// a line for the next call. With errTooLong the line is the beginning of one.
func (l *lines) next() ([]byte, error) {
	for {
		if i := bytes.IndexByte(l.buf[l.seen:l.w], '\n'); i >= 0 {
			line := l.buf[l.r : l.seen+i]
			l.r = l.seen + i + 1
			l.seen = l.r
			return line, nil
		}
		l.seen = l.w
		if l.w-l.r > l.max {
			return l.buf[l.r:l.w], errTooLong
		}
		l.makeRoom()
		n, err := l.from.Read(l.buf[l.w:])
		l.w += n
		if n == 0 && err != nil {
			return nil, err
		}
	}
}

func (l *lines) makeRoom() {
	if l.r == l.w {
		l.r, l.w = 0, 0
		if len(l.buf) > keptBuffer {
			l.buf = nil
		}
	}
	switch {
	case l.buf == nil:
		l.buf = make([]byte, firstBuffer)
	case l.w < len(l.buf):
	case l.r > 0:
		l.w = copy(l.buf, l.buf[l.r:l.w])
		l.r = 0
	default:
		l.buf = append(l.buf, make([]byte, min(len(l.buf), l.max+firstBuffer))...)
	}
	l.seen = l.w
}

// rest is what was read and not used.
func (l *lines) rest() []byte { return l.buf[l.r:l.w] }
