package dlq

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/retry"
)

// What programs see of a dead letter is what was stored, and what they hand back is what they got.
func TestEntry_isWhatWasStored(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 29, 12, 0, 0, 1, time.UTC)
	stored := dlq.Entry{
		Origin: dlq.Origin{
			Route: "billing", Stream: "ORDERS", Consumer: "billing-2", Sequence: 7, Time: at, Subject: "orders.eu", Attempts: 3, Deliveries: 9, Returns: 2, Due: at.Add(1),
			FirstFailure: at.Add(2), LastFailure: at.Add(3), LastError: "no such account", Replay: 1, Job: "j1", Edited: "j0",
			Past: []retry.Past{{Replay: 0, Job: "j1", Time: at, Attempts: 20, Reason: "exhausted", Error: "timeout"}},
		},
		Header: nats.Header{"Trace": {"a", "b"}}, Data: []byte("body"), Reason: dlq.Rejected, Stack: []byte("main.go:1"), Instance: "host-1",
		StoredSubject: "relay.dlq.billing.x", StoredSequence: 12, StoredTime: at.Add(4), Size: 4,
	}
	outside := map[string]string{"Deliveries": "", "Returns": "", "Due": ""} // what only relay needs
	e := entryOf(stored)
	told, all := reflect.ValueOf(e), reflect.ValueOf(stored)
	for _, f := range reflect.VisibleFields(all.Type()) {
		if _, own := outside[f.Name]; own || f.Anonymous || !f.IsExported() {
			continue
		}
		want := all.FieldByIndex(f.Index)
		if want.IsZero() {
			t.Fatalf("the test says nothing of %s", f.Name)
		}
		got := told.FieldByName(f.Name)
		switch {
		case !got.IsValid():
			t.Errorf("programs do not see %s", f.Name)
		case f.Name == "Past":
			if past := Past(stored.Past[0]); len(e.Past) != 1 || e.Past[0] != past {
				t.Errorf("past: %+v", e.Past)
			}
		case !reflect.DeepEqual(got.Interface(), want.Interface()):
			t.Errorf("%s: %v, want %v", f.Name, got, want)
		}
	}
	if back := e.entry(); !reflect.DeepEqual(back, stored) {
		t.Errorf("handed back: %+v", back)
	}
	if e.ID() != stored.ID() {
		t.Errorf("id %s, want %s", e.ID(), stored.ID())
	}
	ours, err := json.Marshal(e)
	theirs, err2 := json.Marshal(stored)
	if err != nil || err2 != nil || string(ours) != string(theirs) {
		t.Errorf("%s, %v; want %s, %v", ours, err, theirs, err2)
	}
	var read Entry
	if err := json.Unmarshal(ours, &read); err != nil || read.ID() != e.ID() || string(read.Data) != "body" || read.StoredSequence != 12 || !read.Past[0].Time.Equal(at) {
		t.Errorf("read as %+v, %v", read, err)
	}
	// One that a program puts together, as from numbers that it kept, names the same message.
	if own := (Entry{Stream: e.Stream, Consumer: e.Consumer, Sequence: e.Sequence, Time: e.Time}); own.ID() != e.ID() {
		t.Errorf("id %s, want %s", own.ID(), e.ID())
	}
}
