package main

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/dlq"
)

// bodyText is a body for a person: JSON indented, text as it is, anything else as a hex dump.
func bodyText(data []byte) string {
	var pretty bytes.Buffer
	switch {
	case len(data) == 0:
		return "(empty)"
	case json.Valid(data) && json.Indent(&pretty, data, "", "  ") == nil:
		return printableLines(pretty.String())
	case utf8.Valid(data) && !strings.ContainsFunc(string(data), func(r rune) bool { return r < ' ' && r != '\n' && r != '\t' && r != '\r' }):
		return printableLines(string(data))
	}
	return strings.TrimRight(hex.Dump(data), "\n")
}

func printableLines(s string) string {
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		lines[i] = printable(strings.ReplaceAll(line, "\t", "    "))
	}
	return strings.Join(lines, "\n")
}

// entry is a dead letter as JSON. Bytes that are not UTF-8 are in base64, next to the text that stands for them.
type entry struct {
	Number       uint64      `json:"number"`
	Stored       time.Time   `json:"stored"`
	Reason       string      `json:"reason"`
	Error        string      `json:"error"`
	Route        string      `json:"route"`
	Subject      string      `json:"subject"`
	Stream       string      `json:"stream"`
	Consumer     string      `json:"consumer"`
	Sequence     uint64      `json:"sequence"`
	Published    time.Time   `json:"published"`
	Attempts     int         `json:"attempts"`
	Deliveries   uint64      `json:"deliveries"`
	FirstFailure *time.Time  `json:"first_failure,omitempty"`
	LastFailure  *time.Time  `json:"last_failure,omitempty"`
	Replay       int         `json:"replay"`
	Job          string      `json:"job,omitempty"`
	Instance     string      `json:"instance"`
	Stack        string      `json:"stack,omitempty"`
	Size         int         `json:"size"`
	Header       nats.Header `json:"header,omitempty"`
	Body         string      `json:"body,omitempty"`
	Body64       string      `json:"body_base64,omitempty"`
	Subject64    string      `json:"subject_base64,omitempty"`
}

func entryJSON(e dlq.Entry, body bool) entry {
	j := entry{
		Number: e.StoredSequence, Stored: e.StoredTime, Reason: string(e.Reason), Error: e.LastError, Route: e.Route,
		Subject: e.Subject, Stream: e.Stream, Consumer: e.Consumer, Sequence: e.Sequence, Published: e.Time,
		Attempts: e.Attempts, Deliveries: e.Deliveries, FirstFailure: maybe(e.FirstFailure), LastFailure: maybe(e.LastFailure),
		Replay: e.Replay, Job: e.Job, Instance: e.Instance, Stack: string(e.Stack), Size: e.Size,
	}
	if !utf8.ValidString(e.Subject) {
		j.Subject64 = base64.StdEncoding.EncodeToString([]byte(e.Subject))
	}
	if body {
		j.Header = e.Header
		if utf8.Valid(e.Data) {
			j.Body = string(e.Data)
		} else {
			j.Body64 = base64.StdEncoding.EncodeToString(e.Data)
		}
	}
	return j
}

func maybe(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func printLine(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}
