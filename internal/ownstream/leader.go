package ownstream

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/transient"
)

// LastFromLeader gets the last message of a stream whose subject matches, as its leader has it, and its sequence. The error is
// [jetstream.ErrMsgNotFound] when there is none.
func LastFromLeader(ctx context.Context, js jetstream.JetStream, stream, subject string) (last *nats.Msg, sequence uint64, err error) {
	request, err := json.Marshal(map[string]string{"last_by_subj": subject})
	if err != nil {
		return nil, 0, err
	}
	m, err := transient.Ask(ctx, js.Conn(), func(ctx context.Context) (*nats.Msg, error) {
		return js.Conn().RequestWithContext(ctx, APIPrefix(js)+"STREAM.MSG.GET."+stream, request)
	})
	if err != nil {
		return nil, 0, err
	}
	var answer struct {
		Error   *jetstream.APIError `json:"error"`
		Message *struct {
			Subject  string `json:"subject"`
			Sequence uint64 `json:"seq"`
			Header   []byte `json:"hdrs"`
			Data     []byte `json:"data"`
		} `json:"message"`
	}
	if err := json.Unmarshal(m.Data, &answer); err != nil {
		return nil, 0, err
	}
	switch {
	case answer.Error != nil && answer.Error.ErrorCode == jetstream.JSErrCodeMessageNotFound:
		return nil, 0, jetstream.ErrMsgNotFound
	case answer.Error != nil:
		return nil, 0, answer.Error
	case answer.Message == nil:
		return nil, 0, jetstream.ErrInvalidJetStreamResponse
	}
	last = &nats.Msg{Subject: answer.Message.Subject, Data: answer.Message.Data}
	if len(answer.Message.Header) > 0 {
		if last.Header, err = nats.DecodeHeadersMsg(answer.Message.Header); err != nil {
			return nil, 0, err
		}
	}
	return last, answer.Message.Sequence, nil
}

// APIPrefix is what the subjects of the JetStream API begin with, with the dot.
func APIPrefix(js jetstream.JetStream) string {
	switch o := js.Options(); {
	case o.Domain != "":
		return "$JS." + o.Domain + ".API."
	case o.APIPrefix != "":
		return strings.TrimSuffix(o.APIPrefix, ".") + "."
	}
	return jetstream.DefaultAPIPrefix
}
