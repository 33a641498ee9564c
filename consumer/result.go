package consumer

import (
	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/consumer/internal/reply"
)

// Result is what a handler returns in addition to its verdict. The caller gets it: the publisher of the message, who
// waits for the outcome. A handler fills it with [Msg.Reply] and [Msg.ReplyHeader]. Its methods are safe for concurrent
// use.
type Result struct{ kept *reply.Result }

// RecordReply makes m keep the result that its handler gives, up to most bytes, as if a caller waited for it. It is for tests of
// handlers, and for handlers that call others; relay itself does so for each attempt of a message whose caller waits.
func RecordReply(m *Msg, most int) *Result {
	m.result = reply.New(most)
	return &Result{m.result}
}

// WantsReply tells whether a caller waits for the result of the message, so that a handler need not keep one that nobody
// wants. With [Archive].Results the archive does, too. It does not change during an attempt.
func (m *Msg) WantsReply() bool { return m.result != nil }

// MaxReply is how many bytes of a result reach the caller or the archive; 0 when nobody wants a result.
func (m *Msg) MaxReply() int { return m.result.Most() }

// Reply sets the bytes of the result, which go to the caller when the attempt succeeds. They are copied. The last call counts. What
// is longer than [Msg.MaxReply] is cut, and the caller is told that it was. Without a caller who waits, and after the attempt, it
// does nothing.
func (m *Msg) Reply(data []byte) { m.result.Set(data) }

// ReplyHeader sets a header of the result, as Content-Type. It returns false, and sets nothing, when the name is no header name or
// is one of relay's or the server's own (Relay-*, Nats-*), when the value holds a line break or another control byte, or when the
// headers are too many: 32, of 4 KiB together. Without a caller who waits it sets nothing and returns true.
func (m *Msg) ReplyHeader(name, value string) bool { return m.result.SetHeader(name, value) }

// Data is what was given last, cut to its bound, and whether it was cut.
func (r *Result) Data() (data []byte, truncated bool) { return r.kept.Data() }

// Header is a copy of the headers that were set.
func (r *Result) Header() nats.Header { return r.kept.Header() }
