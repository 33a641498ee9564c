package consumer

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/consumer/internal/outcome"
	"github.com/relaymq/relay/internal/archive"
	"github.com/relaymq/relay/internal/supervise"
)

// Archive says whether relay records the outcome of each message, so that it can be looked up later. Routes never wait for the
// archive: a record that finds no room is dropped and counted.
type Archive struct {
	// Outcomes has a record of each message kept in the stream <SERVICE>_ARCHIVE.
	Outcomes bool `koanf:"outcomes"`
	// Results has 4 KiB of what the handler returned kept with it, see [Msg.Reply], whether or not a caller waits.
	Results bool `koanf:"results"`
	// MaxAge is how long records are kept. Zero means 168h.
	MaxAge time.Duration `koanf:"max_age"`
	// MaxBytes bounds them: the oldest go. Zero means 256 MiB, which the server keeps free for them.
	MaxBytes Bytes `koanf:"max_bytes"`
	// MaxMsgs bounds the messages of the stream. Each of them holds the records of half a second, or of many messages. Zero
	// means no bound.
	MaxMsgs int `koanf:"max_msgs"`
}

// WithDefaults fills the zero fields.
func (a Archive) WithDefaults() Archive {
	a.MaxAge = cmp.Or(a.MaxAge, 168*time.Hour)
	a.MaxBytes = cmp.Or(a.MaxBytes, 256<<20)
	a.Results = a.Results && a.Outcomes
	return a
}

// newArchive is nil when nothing is kept.
func newArchive(r *Relay) *archive.Writer {
	if !r.cfg.Archive.Outcomes {
		return nil
	}
	return archive.New(archive.Config{
		Service: r.cfg.Service, Instance: r.cfg.Instance, Logger: r.log, MaxPayload: r.nc.MaxPayload,
		Publish: func(ctx context.Context, m *nats.Msg) error {
			_, err := r.js.PublishMsg(ctx, m, jetstream.WithExpectStream(archive.StreamName(r.cfg.Service)))
			if errors.Is(err, jetstream.ErrNoStreamResponse) {
				return errors.Join(err, r.stores.EnsureArchive(ctx)) // for the next try: somebody deleted the stream
			}
			return err
		},
	})
}

// keepsResult has what an attempt returns kept, if no caller has it kept already. It is closed at the end of the attempt.
func (m *message) keepsResult(msg *Msg) *Result {
	m.result = RecordReply(msg, archive.MaxResult)
	return m.result
}

// toArchive keeps what became of the message.
func (m *message) toArchive(a *archive.Writer, o supervise.Outcome) {
	stream, r := outcome.Record(&m.Unsettled, o)
	if result := m.resultToKeep(); result != nil && o.Action == supervise.AckMessage {
		r.Result, r.Cut = result.Data()
	}
	a.Add(stream, r)
}

// resultToKeep is that of the last attempt; nil: none is kept.
func (m *message) resultToKeep() *Result {
	switch {
	case !m.route().relay.cfg.Archive.Results:
		return nil
	case m.call != nil && m.call.result != nil:
		return m.call.result
	}
	return m.result
}
