package route

import (
	"github.com/relaymq/relay/consumer/internal/outcome"
	"github.com/relaymq/relay/consumer/internal/reply"
	"github.com/relaymq/relay/internal/archive"
	"github.com/relaymq/relay/internal/supervise"
)

// keepsResult has what an attempt returns kept, if no caller has it kept already. It is closed at the end of the attempt.
func (m *Message) keepsResult() *reply.Result {
	m.result = reply.New(archive.MaxResult)
	return m.result
}

// ToArchive keeps what became of the message.
func (m *Message) ToArchive(a *archive.Writer, o supervise.Outcome) {
	stream, r := outcome.Record(&m.Unsettled, o)
	if result := m.resultToKeep(); result != nil && o.Action == supervise.AckMessage {
		r.Result, r.Cut = result.Data()
	}
	a.Add(stream, r)
}

// resultToKeep is that of the last attempt; nil: none is kept.
func (m *Message) resultToKeep() *reply.Result {
	switch {
	case !m.route().Home.Config.Results:
		return nil
	case m.call != nil && m.call.result != nil:
		return m.call.result
	}
	return m.result
}
