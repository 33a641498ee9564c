package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"github.com/relaymq/relay/internal/natstest"
	"github.com/relaymq/relay/internal/orders"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, natstest.Leaks()...) }

// answering has a stranger answer on a subject.
func answering(t *testing.T, at string, answer func(m *nats.Msg)) *nats.Conn {
	t.Helper()
	s := natstest.Start(t)
	stranger := s.Conn(t)
	if _, err := stranger.Subscribe(at, answer); err != nil {
		t.Fatal(err)
	}
	if err := stranger.Flush(); err != nil {
		t.Fatal(err)
	}
	return s.Conn(t)
}

// A flood of answers ends, and says so.
func TestAsk_aFloodOfAnswersEnds(t *testing.T) {
	t.Parallel()
	nc := answering(t, StatusSubject("relay"), func(m *nats.Msg) {
		for range 3 * maxAnswers {
			_ = m.Respond([]byte(`{"instance":"x"}`))
		}
	})
	a, err := Ask(t.Context(), nc, "relay", StatusRequest{})
	if err != nil && err != ErrNobody || len(a.Bad) != maxBadAnswers+1 {
		t.Errorf("%v, bad %q", err, a.Bad)
	}
}

// The pages of an instance are put together, whatever page has which keys.
func TestAsk_pagesArePutTogether(t *testing.T) {
	t.Parallel()
	nc := answering(t, StatusSubject("relay"), func(m *nats.Msg) {
		for page := range 3 {
			data, _ := json.Marshal(Status{Instance: "a", Service: "relay", Page: page + 1, Pages: 3, Routes: []RouteStatus{
				{Name: "billing", Waiting: []KeyStatus{{Key: fmt.Sprint(page)}}},
			}})
			_ = m.Respond(data)
		}
	})
	a, err := Ask(t.Context(), nc, "relay", StatusRequest{})
	if err != nil || len(a.Bad) > 0 || len(a.Instances) != 1 || len(a.Instances[0].Routes) != 1 || len(a.Instances[0].Routes[0].Waiting) != 3 {
		t.Fatalf("%+v, %v", a, err)
	}
	seen := 0
	if _, err = AskUntil(t.Context(), nc, "relay", StatusRequest{}, func(Status) bool { seen++; return true }); err != nil || seen != 1 {
		t.Errorf("%d pages were waited for, %v", seen, err)
	}
}

// Nobody answers: that is an error with a name. What answers something else is named, and left out.
func TestOrders_whoAnswers(t *testing.T) {
	t.Parallel()
	nc := answering(t, HandoverSubject("relay"), func(m *nats.Msg) {
		for _, text := range []string{`{"instance":"a","service":"relay","route":"billing","giving":true}`, `{"instance":"a","service":"relay","route":"billing"}`, `[]`} {
			_ = m.Respond([]byte(text))
		}
	})
	list, bad, err := Handover(t.Context(), nc, "relay", HandoverOrder{Route: "billing", From: "a"})
	if err != nil || len(list) != 1 || !list[0].Giving || len(bad) != 2 || !strings.Contains(bad[0], "answers twice") {
		t.Errorf("%+v, bad %q, %v", list, bad, err)
	}
	if _, _, err := Wake(t.Context(), nc, "relay", orders.Order{Route: "billing"}); !errors.Is(err, ErrNobody) {
		t.Errorf("%v, want %v", err, ErrNobody)
	}
}

func TestCut(t *testing.T) {
	for text, want := range map[string]string{"short": "short", "12345678": "12345678", "123456789": "12345678… (9 bytes)", "1234567é": "1234567… (9 bytes)"} {
		if got := Cut(text, 8); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestCatchUpStatus_left(t *testing.T) {
	var none *CatchUpStatus
	for want, c := range map[int]*CatchUpStatus{0: none, 3: {Held: 10, Handed: 7}} {
		if got := c.Left(); got != want {
			t.Errorf("%+v: %d, want %d", c, got, want)
		}
	}
	if got := (&CatchUpStatus{Held: 1, Handed: 2}).Left(); got != 0 {
		t.Errorf("more than was held: %d", got)
	}
}
