package consumer

import (
	"encoding"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Start is where a new durable begins: "all" the messages of the stream, only "new" ones, those "since" a time, or from
// a sequence. The zero value chooses nothing. [StartAll], [StartNew], [Since] and [FromSeq] make one.
type Start struct {
	Policy string    // "", "all", "new", "since" or "seq"
	Since  time.Time // for since
	Seq    uint64    // for seq
}

var _ encoding.TextUnmarshaler = (*Start)(nil)

// UnmarshalText reads "all", "new", "since:<RFC 3339 time>" or "seq:<number>".
func (s *Start) UnmarshalText(text []byte) error {
	policy, arg, _ := strings.Cut(string(text), ":")
	*s = Start{Policy: policy}
	arg = strings.TrimSpace(arg)
	var err error
	switch policy {
	case "":
	case "all", "new":
		if arg != "" {
			err = fmt.Errorf("takes no argument")
		}
	case "since":
		s.Since, err = time.Parse(time.RFC3339Nano, arg)
	case "seq":
		s.Seq, err = strconv.ParseUint(arg, 10, 64)
		if err == nil && s.Seq == 0 {
			err = fmt.Errorf("sequences start at 1")
		}
	default:
		err = fmt.Errorf("unknown")
	}
	if err != nil {
		return fmt.Errorf(`start %q: use all, new, {since: <RFC 3339 time>} or {seq: <number>}: %w`, text, err)
	}
	return nil
}

// MarshalText is the reverse of UnmarshalText.
func (s Start) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

func (s Start) String() string {
	switch s.Policy {
	case "since":
		return "since:" + s.Since.Format(time.RFC3339Nano)
	case "seq":
		return fmt.Sprintf("seq:%d", s.Seq)
	}
	return s.Policy
}

// Where a durable begins that does not exist yet: [Route.Start].
var (
	// StartAll has it begin with the first message of the stream.
	StartAll = Start{Policy: "all"}
	// StartNew has it begin with what is published from now on.
	StartNew = Start{Policy: "new"}
)

// Since has it begin with what was stored at t or later.
func Since(t time.Time) Start { return Start{Policy: "since", Since: t} }

// FromSeq has it begin with the message of the stream that has this sequence. Sequences start at 1.
func FromSeq(seq uint64) Start { return Start{Policy: "seq", Seq: seq} }
