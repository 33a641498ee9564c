package looks

import (
	"context"
	"encoding/json"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Message is a message as the leader of its stream tells it.
type Message struct {
	Subject  string    `json:"subject"`
	Sequence uint64    `json:"seq"`
	Header   []byte    `json:"hdrs"`
	Data     []byte    `json:"data"`
	Time     time.Time `json:"time"`
}

// Next is the first message from this sequence on that has such a subject; nil when there is none. The prefix of the
// subjects of JetStream is api.
func Next(ctx context.Context, nc *nats.Conn, api, stream, pattern string, seq uint64) (*Message, error) {
	request, err := json.Marshal(map[string]any{"seq": seq, "next_by_subj": pattern})
	if err != nil {
		return nil, err
	}
	m, err := nc.RequestMsgWithContext(ctx, &nats.Msg{Subject: api + "STREAM.MSG.GET." + stream, Data: request})
	if err != nil {
		return nil, err
	}
	var answer struct {
		Error   *jetstream.APIError `json:"error"`
		Message Message             `json:"message"`
	}
	switch err := json.Unmarshal(m.Data, &answer); {
	case err != nil:
		return nil, err
	case answer.Error == nil:
		return &answer.Message, nil
	case answer.Error.ErrorCode == jetstream.JSErrCodeMessageNotFound:
		return nil, nil
	}
	return nil, answer.Error
}
