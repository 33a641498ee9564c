package consumer

import (
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
)

// Bounds of the headers of a result: they are for names and types, not for data.
const (
	maxResultHeaders     = 32
	maxResultHeaderBytes = 4 << 10
)

// Result is what a handler returns in addition to its verdict. The caller gets it: the publisher of the message, who
// waits for the outcome. A handler fills it with [Msg.Reply] and [Msg.ReplyHeader]. Its methods are safe for concurrent
// use.
type Result struct {
	most int

	mu          sync.Mutex
	data        []byte
	truncated   bool
	header      nats.Header
	headerBytes int
	closed      bool // the attempt is over: what comes now is of no use
}

// RecordReply makes m keep the result that its handler gives, up to most bytes, as if a caller waited for it. It is for tests of
// handlers, and for handlers that call others; relay itself calls it for each attempt of a message whose caller waits.
func RecordReply(m *Msg, most int) *Result {
	r := &Result{most: max(most, 0)}
	m.result = r
	return r
}

// WantsReply tells whether a caller waits for the result of the message, so that a handler need not keep one that nobody
// wants. With [Archive].Results the archive does, too. It does not change during an attempt.
func (m *Msg) WantsReply() bool { return m.result != nil }

// MaxReply is how many bytes of a result reach the caller or the archive; 0 when nobody wants a result.
func (m *Msg) MaxReply() int {
	if m.result == nil {
		return 0
	}
	return m.result.most
}

// Reply sets the bytes of the result, which go to the caller when the attempt succeeds. They are copied. The last call counts. What
// is longer than [Msg.MaxReply] is cut, and the caller is told that it was. Without a caller who waits, and after the attempt, it
// does nothing.
func (m *Msg) Reply(data []byte) {
	r := m.result
	if r == nil {
		return
	}
	kept := slices.Clone(data[:min(len(data), r.most)])
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.data, r.truncated = kept, len(kept) < len(data)
	}
}

// ReplyHeader sets a header of the result, as Content-Type. It returns false, and sets nothing, when the name is no header name or
// is one of relay's or the server's own (Relay-*, Nats-*), when the value holds a line break or another control byte, or when the
// headers are too many: 32, of 4 KiB together. Without a caller who waits it sets nothing and returns true.
func (m *Msg) ReplyHeader(name, value string) bool {
	r := m.result
	if r == nil {
		return true
	}
	if !mayReplyWith(name, value) {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return true
	}
	bytes := r.headerBytes + len(name) + len(value)
	if old, had := r.header[name]; had {
		bytes -= len(name) + len(old[0])
	} else if len(r.header) == maxResultHeaders {
		return false
	}
	if bytes > maxResultHeaderBytes {
		return false
	}
	if r.header == nil {
		r.header = nats.Header{}
	}
	r.header[name], r.headerBytes = []string{value}, bytes
	return true
}

// mayReplyWith tells whether a handler may set a header: what relay and the server say of a result is theirs.
func mayReplyWith(name, value string) bool {
	for i := range len(name) {
		if c := name[i]; c <= ' ' || c >= 0x7f || c == ':' {
			return false
		}
	}
	for i := range len(value) {
		if c := value[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	if name == "" {
		return false
	}
	own := strings.ToLower(name)
	return !strings.HasPrefix(own, "relay-") && !strings.HasPrefix(own, "nats-")
}

// Data is what was given last, cut to its bound, and whether it was cut.
func (r *Result) Data() (data []byte, truncated bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.data, r.truncated
}

// Header is a copy of the headers that were set.
func (r *Result) Header() nats.Header {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.header)
}

// close ends the taking: a handler may keep its message for longer than its attempt.
func (r *Result) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
}
