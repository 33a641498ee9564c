package events

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"pgregory.net/rapid"

	"github.com/relaymq/relay/event"
	"github.com/relaymq/relay/internal/eventkind"
	"github.com/relaymq/relay/internal/natstest"
)

func same(why string) string { return why }

// storing is a server that stores the events of a service.
func storing(t *testing.T) (*nats.Conn, jetstream.JetStream, jetstream.Stream) {
	t.Helper()
	nc := natstest.Start(t).Conn(t)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.CreateStream(t.Context(), Stream("relay", 1, time.Hour, 1<<20, 1000))
	if err != nil {
		t.Fatal(err)
	}
	return nc, js, stream
}

// What was reported before the end is published, though Run is told to end before it looks.
func TestBus_publishesAtItsEndWhatIsQueued(t *testing.T) {
	for range 20 { // Run may look at either first
		var s sink
		b := NewBus("relay", "here", same, s.publish)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for i := range 30 {
			b.Report(eventkind.DeadLetter, event.Data{Route: fmt.Sprint(i % 10)})
		}
		b.Run(ctx)
		sum := map[string]int{}
		for _, e := range s.all() {
			sum[e.Route] += e.Count
		}
		if len(sum) != 10 || sum["0"] != 3 || sum["9"] != 3 || len(s.all()) != 20 {
			t.Fatalf("%d events: %v", len(s.all()), sum)
		}
	}
}

// Strangers may make errors of any number of kinds. Beyond a thousand they are told of together, a minute later, and then it is as before.
func TestBus_moreGroupsThanItKeeps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s sink
		b := NewBus("relay", "here", same, s.publish)
		ctx, cancel := context.WithCancel(t.Context())
		go b.Run(ctx)
		report := func(from, n int) {
			for i := range n {
				b.Report(eventkind.DeadLetter, event.Data{Route: "billing", Why: fmt.Sprint(from + i)})
				synctest.Wait()
			}
		}
		report(0, maxGroups)
		if n := len(s.all()); n != maxGroups {
			t.Fatalf("%d at once", n)
		}
		report(maxGroups, 7)
		if n := len(s.all()); n != maxGroups {
			t.Errorf("%d, with what has no group", n)
		}
		time.Sleep(window + 2*time.Second)
		synctest.Wait()
		list := s.all()
		if last := list[len(list)-1]; len(list) != maxGroups+1 || last.Count != 7 || last.Why != fmt.Sprint(maxGroups+6) || last.First.After(last.Time) {
			t.Errorf("%d after a minute, the last one %+v", len(list), last)
		}
		time.Sleep(window + 2*time.Second)
		report(5000, 1)
		if list := s.all(); len(list) != maxGroups+2 || list[maxGroups+1].Count != 1 {
			t.Errorf("%d when all are forgotten", len(list))
		}
		cancel()
		synctest.Wait()
	})
}

// What is cut is valid, begins as it did, and is no longer than its bound but for the sign that it was cut.
func TestCut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.OneOf(rapid.StringOf(rapid.SampledFrom([]rune("aé€😀"))), rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) })).Draw(t, "s")
		limit := rapid.IntRange(0, 12).Draw(t, "limit")
		valid, got := strings.ToValidUTF8(s, "\ufffd"), cut(s, limit)
		kept, short := strings.CutSuffix(got, "…")
		switch {
		case !utf8.ValidString(got):
			t.Errorf("%q is not valid", got)
		case len(valid) <= limit:
			if got != valid {
				t.Errorf("%q, want all of %q", got, valid)
			}
		case !short || !strings.HasPrefix(valid, kept) || len(kept) > limit || len(kept) < limit-3:
			t.Errorf("%q of %q, to %d bytes", got, valid, limit)
		}
	})
}

// Each field that strangers write is bounded.
func TestData_bounded(t *testing.T) {
	long := strings.Repeat("x", 5000)
	d := bounded(event.Data{Text: long, Why: long, Key: long, Subject: long, By: long, User: long})
	for name, c := range map[string]struct {
		got   string
		limit int
	}{
		"text": {d.Text, maxText}, "why": {d.Why, maxText}, "key": {d.Key, maxName}, "subject": {d.Subject, maxName}, "by": {d.By, maxName}, "user": {d.User, maxName},
	} {
		if len(c.got) != c.limit+len("…") {
			t.Errorf("%s has %d bytes", name, len(c.got))
		}
	}
	if text := bounded(event.Data{Text: strings.Repeat("é", 1000)}).Text; len(text) > maxText+4 || !strings.HasSuffix(text, "é…") {
		t.Errorf("%d bytes", len(text))
	}
}

// An event is stored once, however often it is published with its id, and says what it is. One that has no text is an error.
func TestPublish(t *testing.T) {
	nc, js, stream := storing(t)
	sub, err := nc.SubscribeSync("relay.event.>")
	if err != nil {
		t.Fatal(err)
	}
	e := event.Event{ID: "once", Kind: eventkind.Audit, Service: "relay", Instance: "a", Time: time.Now(), Data: event.Data{Route: "billing", Text: strings.Repeat("x", 5000)}}
	other := e
	other.ID = ""
	for _, e := range []event.Event{e, e, other} {
		if err := Publish(nc, e); err != nil {
			t.Fatal(err)
		}
	}
	var ids []string
	for range 3 {
		m, err := sub.NextMsg(10 * time.Second)
		if err != nil {
			t.Fatal(err)
		}
		var back event.Event
		if err := json.Unmarshal(m.Data, &back); err != nil {
			t.Fatal(err)
		}
		if m.Header.Get("Content-Type") != eventkind.ContentType || m.Header.Get(nats.MsgIdHdr) != back.ID || len(back.Text) > maxText+len("…") {
			t.Errorf("%v, %d bytes of text", m.Header, len(back.Text))
		}
		ids = append(ids, back.ID)
	}
	if ids[0] != "once" || ids[1] != "once" || ids[2] == "" || ids[2] == "once" {
		t.Errorf("%q", ids)
	}
	// Its answers tell that the server has stored what came before.
	if _, err := js.Publish(t.Context(), "relay.event.end", nil); err != nil {
		t.Fatal(err)
	}
	if info, err := stream.Info(t.Context()); err != nil || info.State.Msgs != 3 {
		t.Errorf("%+v, %v", info.State, err)
	}
	e.Time = time.Date(12000, 1, 1, 0, 0, 0, 0, time.UTC)
	if err := Publish(nc, e); err == nil {
		t.Error("a time that JSON cannot have was published")
	}
}

// Whoever asks for what is stored is told when it cannot be read.
func TestStored_errors(t *testing.T) {
	_, js, stream := storing(t)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Stored(ended, stream, nil, time.Time{}, 10); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := js.DeleteStream(t.Context(), StreamName("relay")); err != nil {
		t.Fatal(err)
	}
	if list, err := Stored(t.Context(), stream, nil, time.Time{}, 10); err == nil {
		t.Errorf("of a stream that is not there: %v", list)
	}
}
