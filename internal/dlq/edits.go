package dlq

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/transient"
)

// Edit is what somebody did to one of relay's own streams, and what it cost.
type Edit struct {
	Stream string    `json:"stream"`
	At     time.Time `json:"at"` // when an instance noticed
	What   string    `json:"what"`
	// AtLeast and AtMost are the messages that went by it.
	AtLeast uint64 `json:"at_least"`
	AtMost  uint64 `json:"at_most"`
}

const (
	editsKey  = "own.edits" // a key with a dot is no job
	mostEdits = 50
)

// Edits are the last of them, the oldest first. They are remembered for thirty days after the last one.
func (j *Jobs) Edits(ctx context.Context) ([]Edit, error) {
	list, _, err := j.edits(ctx)
	return list, err
}

func (j *Jobs) edits(ctx context.Context) (list []Edit, revision uint64, err error) {
	e, err := j.kv.Get(ctx, editsKey)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, classify(err)
	}
	err = json.Unmarshal(e.Value(), &list)
	return list, e.Revision(), err
}

// NoteEdit adds one.
func (j *Jobs) NoteEdit(ctx context.Context, edit Edit) error {
	for {
		list, revision, err := j.edits(ctx)
		if err != nil {
			return err
		}
		list = append(list, edit)
		value, err := json.Marshal(list[max(0, len(list)-mostEdits):])
		if err != nil {
			return err
		}
		if _, err = j.kv.Update(ctx, editsKey, value, revision); !transient.Raced(err) || ctx.Err() != nil {
			return classify(err)
		}
	}
}
