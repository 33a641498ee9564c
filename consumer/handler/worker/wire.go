package worker

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/relaymq/relay/consumer"
)

// appendRequest writes the line of a message. It is made by hand: encoding/json takes three times as long, of what is most of
// relay's own time for a small message.
func appendRequest(b []byte, m *consumer.Msg) []byte {
	b = append(b, `{"id":`...)
	b = appendString(b, m.ID)
	b = append(b, `,"attempt":`...)
	b = strconv.AppendInt(b, int64(m.Attempt), 10)
	b = append(b, `,"subject":`...)
	b = appendString(b, m.Subject)
	if utf8.Valid(m.Data) {
		b = append(b, `,"data":`...)
		b = appendString(b, m.Data)
	} else {
		b = append(b, `,"data_base64":"`...)
		b = base64.StdEncoding.AppendEncode(b, m.Data)
		b = append(b, '"')
	}
	b = append(b, `,"headers":{`...)
	for i, name := range slices.Sorted(maps.Keys(m.Header)) {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(appendString(b, name), ':', '[')
		for j, value := range m.Header[name] {
			if j > 0 {
				b = append(b, ',')
			}
			b = appendString(b, value)
		}
		b = append(b, ']')
	}
	b = append(b, `},"stream":`...)
	b = appendString(b, m.Stream)
	b = append(b, `,"sequence":`...)
	b = strconv.AppendUint(b, m.Sequence, 10)
	b = append(b, `,"time":"`...)
	b = m.Time.UTC().AppendFormat(b, time.RFC3339Nano)
	b = append(b, `","route":`...)
	b = appendString(b, m.Route)
	if m.Fence > 0 {
		b = append(b, `,"fence":`...)
		b = strconv.AppendUint(b, m.Fence, 10)
	}
	if m.Replay > 0 {
		b = append(b, `,"replay":`...)
		b = strconv.AppendInt(b, int64(m.Replay), 10)
	}
	if !m.Deadline.IsZero() {
		b = append(b, `,"deadline":"`...)
		b = m.Deadline.UTC().AppendFormat(b, time.RFC3339Nano)
		b = append(b, '"')
	}
	return append(b, "}\n"...)
}

// appendCancel writes the line that takes a message back.
func appendCancel(b []byte, id string) []byte {
	b = append(b, `{"cancel":`...)
	b = appendString(b, id)
	return append(b, "}\n"...)
}

// appendString writes s as a JSON string. Bytes that are not UTF-8 become U+FFFD.
func appendString[T string | []byte](b []byte, s T) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	from := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			if c >= ' ' && c != '"' && c != '\\' && c != 0x7f {
				i++
				continue
			}
			b = append(b, s[from:i]...)
			switch c {
			case '"', '\\':
				b = append(b, '\\', c)
			case '\n':
				b = append(b, '\\', 'n')
			case '\r':
				b = append(b, '\\', 'r')
			case '\t':
				b = append(b, '\\', 't')
			default:
				b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
			}
			i++
			from = i
			continue
		}
		r, size := utf8.DecodeRuneInString(string(s[i:min(i+utf8.UTFMax, len(s))]))
		switch {
		case r == utf8.RuneError && size == 1:
			b = append(append(b, s[from:i]...), "\ufffd"...)
			from = i + size
		case r == '\u2028' || r == '\u2029' || r == '\u0085': // ends of lines to some readers of lines, such as Python's splitlines
			b = append(append(b, s[from:i]...), '\\', 'u', hex[r>>12], hex[r>>8&15], hex[r>>4&15], hex[r&15])
			from = i + size
		}
		i += size
	}
	b = append(b, s[from:]...)
	return append(b, '"')
}

// answer is a line of a worker.
type answer struct {
	ID      string          `json:"id"`
	Verdict string          `json:"verdict"`
	Delay   json.RawMessage `json:"delay"` // "30s", or seconds
	Error   string          `json:"error"`
	// Result is text, or any other JSON, which is taken as it stands.
	Result       json.RawMessage `json:"result"`
	ResultBase64 []byte          `json:"result_base64"`
	Progress     *string         `json:"progress"`
	Ready        bool            `json:"ready"`

	delay  time.Duration
	result []byte // nil: none
}

var errNoAnswer = errors.New("neither a verdict nor progress")

// parse reads a line, and judges it as far as that can be done without knowing what the worker has in hand.
func (a *answer) parse(line []byte) error {
	if err := json.Unmarshal(line, a); err != nil {
		return err
	}
	switch a.Verdict {
	case "ack", "retry", "snooze", "dead", "drop":
	case "":
		if (a.Progress == nil || a.ID == "") && !a.Ready {
			return errNoAnswer
		}
	default:
		return fmt.Errorf("%q is not a verdict: write ack, retry, snooze, dead or drop", a.Verdict)
	}
	var err error
	if a.delay, err = parseDelay(a.Delay); err != nil {
		return err
	}
	if a.result = a.ResultBase64; len(a.Result) > 0 && !bytes.Equal(a.Result, []byte("null")) {
		a.result = a.Result
		if a.Result[0] == '"' {
			var text string
			if err := json.Unmarshal(a.Result, &text); err != nil {
				return err
			}
			a.result = []byte(text)
		}
	}
	return nil
}

// parseDelay reads "30s", or a number of seconds. None, null and an empty text are zero.
func parseDelay(raw json.RawMessage) (time.Duration, error) {
	if len(raw) == 0 || string(raw) == "null" || string(raw) == `""` {
		return 0, nil
	}
	var d time.Duration
	var text string
	err := json.Unmarshal(raw, &text)
	if err == nil {
		d, err = time.ParseDuration(text)
	} else {
		var seconds float64
		if err = json.Unmarshal(raw, &seconds); err == nil {
			const most = 1 << 30 // seconds; verdicts bound it further
			d = time.Duration(min(max(seconds, -1), most) * float64(time.Second))
		}
	}
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%s is not a delay: write a text such as \"30s\", or a number of seconds", raw)
	}
	return d, nil
}
