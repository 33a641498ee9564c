// Package reply keeps what a handler returns in addition to its verdict, for the caller of the message or for the archive: within bounds, and only while
// the attempt runs.
package reply

import (
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
)

// Bounds of the headers of a result: they are for names and types, not for data.
const (
	MaxHeaders     = 32
	MaxHeaderBytes = 4 << 10
)

// Result is what a handler returned so far. Its methods are safe for concurrent use. A nil Result is for nobody: it keeps
// nothing, and has nothing.
type Result struct {
	most int

	mu          sync.Mutex
	data        []byte
	truncated   bool
	header      nats.Header
	headerBytes int
	closed      bool // the attempt is over: what comes now is of no use
}

// New keeps so many bytes at most.
func New(most int) *Result { return &Result{most: max(most, 0)} }

// Most is how many bytes are kept at most; 0 of a nil Result.
func (r *Result) Most() int {
	if r == nil {
		return 0
	}
	return r.most
}

// Set keeps a copy of data, cut to the bound. The last call counts.
func (r *Result) Set(data []byte) {
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

// SetHeader keeps a header. It returns false, and keeps nothing, when a handler may not set this one, or when the headers are too many.
func (r *Result) SetHeader(name, value string) bool {
	if r == nil {
		return true
	}
	if !maySet(name, value) {
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
	} else if len(r.header) == MaxHeaders {
		return false
	}
	if bytes > MaxHeaderBytes {
		return false
	}
	if r.header == nil {
		r.header = nats.Header{}
	}
	r.header[name], r.headerBytes = []string{value}, bytes
	return true
}

// maySet tells whether a handler may set a header: what relay and the server say of a result is theirs.
func maySet(name, value string) bool {
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

// Data is what was given last, cut to the bound, and whether it was cut.
func (r *Result) Data() (data []byte, truncated bool) {
	if r == nil {
		return nil, false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.data, r.truncated
}

// Header is a copy of the headers that were set.
func (r *Result) Header() nats.Header {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.header)
}

// Close ends the taking: a handler may keep its message for longer than its attempt.
func (r *Result) Close() {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
}
