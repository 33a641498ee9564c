package takeover

import (
	"encoding/json"
	"time"

	"github.com/relaymq/relay/internal/inhand"
)

// Question asks another instance what it has in hand of a durable, or whether it reads it at all.
type Question struct {
	Stream  string    `json:"stream"`
	Durable string    `json:"durable"`
	Created time.Time `json:"created"` // the durable
	Reads   bool      `json:"reads,omitempty"`
}

// ReadsIt is the answer of an instance that reads the durable.
const ReadsIt = "reads"

// Answer says what this instance has in hand, an [inhand.Snapshot] in binary, or whether it reads the durable. Of returns the one that the question is about, or
// nil when this instance does not read it.
func Answer(question []byte, of func(Question) *Takeover) []byte {
	var q Question
	if json.Unmarshal(question, &q) != nil {
		return nil
	}
	var h inhand.Snapshot
	if t := of(q); t != nil {
		if q.Reads {
			return []byte(ReadsIt)
		}
		h = t.cfg.Delivered()
	}
	data, _ := h.MarshalBinary()
	return data
}
