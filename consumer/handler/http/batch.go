package http

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	nethttp "net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/consumer/handler/internal/snippet"
)

// A batch is one request with a line of JSON for each message (application/x-ndjson). Headers about one message are in its line, and
// Relay-Batch says how many there are. An acknowledging answer may name the messages that failed; all others succeeded.

// maxBatchAnswer is how long the answer to a batch may be.
const maxBatchAnswer = 1 << 20

// batchLine is a message in a batch.
type batchLine struct {
	ID       string              `json:"id"`
	Attempt  int                 `json:"attempt"`
	Subject  string              `json:"subject"`
	Headers  map[string][]string `json:"headers,omitempty"` // that forward_headers permits
	Data     *string             `json:"data,omitempty"`
	Base64   []byte              `json:"data_base64,omitempty"` // when it is not UTF-8
	Stream   string              `json:"stream"`
	Sequence uint64              `json:"sequence"`
	Time     time.Time           `json:"time"`
}

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
		return nil, consumer.FailRoute(errors.New("a batch goes to one url, without placeholders, and not with cloudevents: change these, or leave batch out"))
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
	var lines bytes.Buffer
	to, ids := json.NewEncoder(&lines), sha256.New()
	to.SetEscapeHTML(false)
	for _, m := range batch {
		l := batchLine{ID: m.ID, Attempt: m.Attempt, Subject: m.Subject, Stream: m.Stream, Sequence: m.Sequence, Time: m.Time.UTC()}
		if utf8.Valid(m.Data) {
			l.Data = new(string(m.Data))
		} else {
			l.Base64 = m.Data
		}
		passed := nethttp.Header{}
		forward(passed, m.Header, h.forwarded)
		if h.typed {
			passed.Set("Content-Type", contentType(m.Header))
		}
		l.Headers = passed
		if err := to.Encode(l); err != nil {
			return nil, "", err
		}
		fmt.Fprintf(ids, "%s\n", m.ID)
	}
	return lines.Bytes(), "batch-" + hex.EncodeToString(ids.Sum(nil)[:16]), nil
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
		return nil, fmt.Errorf("the answer to the batch is not understood: it is no JSON object (Content-Type %q, Content-Encoding %q)",
			shown(r.resultType), shown(r.resultCoding))
	}
	var a batchAnswer
	if err := json.Unmarshal(answer, &a); err != nil {
		return nil, fmt.Errorf("the answer to the batch is not understood: %s", shown(err.Error()))
	}
	at := make(map[string]int, len(batch))
	for i, m := range batch {
		at[m.ID] = i
	}
	errs := make([]error, len(batch))
	for _, f := range a.Failed {
		i, ok := at[f.ID]
		if !ok {
			return nil, fmt.Errorf("the answer to the batch names %q, which is not in it", shown(f.ID))
		}
		text := shown(f.Error)
		if text == "" {
			text = "the answer to the batch says that it failed"
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
