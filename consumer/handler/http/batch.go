package http

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	nethttp "net/http"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/consumer/handler/internal/snippet"
)

// A batch is one request with a line of JSON for each message (application/x-ndjson). Headers about one message are in its line, and
// Relay-Batch says how many there are. An acknowledging answer may name the messages that failed; all others succeeded.

// maxBatchAnswer is how long the answer to a batch may be.
const maxBatchAnswer = 1 << 20

// batchAnswer names what failed of a batch.
type batchAnswer struct {
	Failed []struct {
		ID      string `json:"id"`
		Verdict string `json:"verdict"` // retry (default), dead or drop
		Error   string `json:"error"`
	} `json:"failed"`
}

// HandleBatch sends the messages as one request.
func (h *Handler) HandleBatch(ctx context.Context, batch []*consumer.Msg) ([]error, error) {
	if h.fixed == nil || h.cfg.CloudEvents != "" && h.cfg.CloudEvents != "off" {
		return nil, consumer.FailRoute(errors.New("a batch needs a url without placeholders, and cloudevents: off: change these, or leave batch out"))
	}
	body, id, err := h.batchBody(batch)
	if err != nil {
		return nil, err
	}
	whole := &consumer.Msg{ID: id, Route: batch[0].Route, Data: body, Deadline: batch[0].Deadline, Attempt: 1}
	header := h.header(whole)
	for _, ofOne := range []string{"Relay-Attempt", "Relay-Subject"} {
		header.Del(ofOne)
	}
	header["Content-Type"], header["Relay-Batch"] = []string{"application/x-ndjson"}, []string{strconv.Itoa(len(batch))}
	token := ""
	if h.auth != nil {
		if token, err = h.auth.token(ctx, ""); err != nil {
			return nil, err
		}
		header["Authorization"] = []string{"Bearer " + token}
	}
	reply, err := h.exchange(ctx, *h.fixed, body, header, token, maxBatchAnswer)
	if err == nil {
		h.heed(*h.fixed, &reply, batch[0])
		err = h.verdict(*h.fixed, &reply)
	}
	if err != nil {
		return nil, err
	}
	errs, err := failedOf(batch, &reply)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", h.fixed.name, err)
	}
	return errs, nil
}

// batchBody is the lines of a batch, and an id that is the same for the same messages.
func (h *Handler) batchBody(batch []*consumer.Msg) (body []byte, id string, err error) {
	size, ids := 0, sha256.New()
	for _, m := range batch {
		size += len(m.ID) + len(m.Subject) + len(m.Data) + 200
	}
	body = make([]byte, 0, size)
	var line []byte
	for _, m := range batch {
		passed := nethttp.Header{}
		forward(passed, m.Header, h.forwarded)
		if h.typed {
			passed.Set("Content-Type", contentType(m.Header))
		}
		if body, err = appendLine(body, m, passed); err != nil {
			return nil, "", err
		}
		line = append(append(line[:0], m.ID...), '\n')
		ids.Write(line)
	}
	return body, "batch-" + hex.EncodeToString(ids.Sum(nil)[:16]), nil
}

// appendLine appends a message as an object of JSON, and a newline. Its headers are those that forward_headers permits; its data is in
// data_base64 when it is not UTF-8.
func appendLine(b []byte, m *consumer.Msg, passed nethttp.Header) ([]byte, error) {
	b = appendString(append(b, `{"id":`...), m.ID)
	b = strconv.AppendInt(append(b, `,"attempt":`...), int64(m.Attempt), 10)
	b = appendString(append(b, `,"subject":`...), m.Subject)
	if len(passed) > 0 {
		b = appendJSON(append(b, `,"headers":`...), passed)
	}
	if utf8.Valid(m.Data) {
		b = appendString(append(b, `,"data":`...), m.Data)
	} else {
		b = append(base64.StdEncoding.AppendEncode(append(b, `,"data_base64":"`...), m.Data), '"')
	}
	b = appendString(append(b, `,"stream":`...), m.Stream)
	b = strconv.AppendUint(append(b, `,"sequence":`...), m.Sequence, 10)
	b, err := m.Time.UTC().AppendText(append(b, `,"time":"`...))
	return append(b, "\"}\n"...), err
}

func appendString[T string | []byte](b []byte, s T) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			return appendJSON(b, string(s))
		}
	}
	return append(append(append(b, '"'), s...), '"')
}

// appendJSON appends what encoding/json writes of a string, or of what holds only strings.
func appendJSON(b []byte, v any) []byte {
	var text bytes.Buffer
	to := json.NewEncoder(&text)
	to.SetEscapeHTML(false)
	if err := to.Encode(v); err != nil {
		panic(err) // strings are never refused
	}
	return append(b, bytes.TrimSuffix(text.Bytes(), []byte("\n"))...)
}

// failedOf reads an acknowledging answer. Plain text says nothing more: all succeeded. What may name messages and is no JSON object is
// not understood, nor is what names a message that was not sent, and then nothing is taken for done.
func failedOf(batch []*consumer.Msg, r *reply) ([]error, error) {
	shown := func(s string) string { return snippet.Head(without([]byte(s), r.token), maxShown) }
	if len(r.result) > maxBatchAnswer {
		return nil, fmt.Errorf("the answer to the batch is longer than %d bytes", maxBatchAnswer)
	}
	answer := bytes.TrimSpace(bytes.TrimPrefix(r.result, []byte("\ufeff"))) // a byte order mark
	switch {
	case len(answer) == 0, answer[0] != '{' && !mayName(answer, r):
		return nil, nil
	case answer[0] != '{':
		return nil, fmt.Errorf("cannot read the answer to the batch: it is not a JSON object (Content-Type %q, Content-Encoding %q)",
			shown(r.resultType), shown(r.resultCoding))
	}
	var a batchAnswer
	if err := json.Unmarshal(answer, &a); err != nil {
		return nil, fmt.Errorf("cannot read the answer to the batch: %s", shown(err.Error()))
	}
	at := make(map[string]int, len(batch))
	for i, m := range batch {
		at[m.ID] = i
	}
	errs := make([]error, len(batch))
	for _, f := range a.Failed {
		i, ok := at[f.ID]
		if !ok {
			return nil, fmt.Errorf("the answer to the batch names the id %q, which is not in the batch", shown(f.ID))
		}
		text := shown(f.Error)
		if text == "" {
			text = "the answer to the batch says that the message failed, without a reason"
		}
		switch f.Verdict {
		case "dead":
			errs[i] = consumer.Dead(errors.New(text))
		case "drop":
			errs[i] = consumer.Drop(text)
		case "retry", "":
			errs[i] = errors.New(text)
		default:
			errs[i] = fmt.Errorf("%s (unknown verdict %q)", text, shown(f.Verdict))
		}
	}
	return errs, nil
}

// mayName tells whether an answer that is no JSON object may name messages all the same: as JSON of another form, or compressed.
func mayName(answer []byte, r *reply) bool {
	const gzip = 0x1f
	return answer[0] == '[' || answer[0] == gzip || r.resultCoding != "" || strings.Contains(strings.ToLower(r.resultType), "json")
}
