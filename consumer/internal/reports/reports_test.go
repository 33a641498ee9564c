package reports

import (
	"errors"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/relaymq/relay/event"
	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/eventkind"
	"github.com/relaymq/relay/internal/events"
	"github.com/relaymq/relay/internal/supervise"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// told is what report had published.
func told(t *testing.T, report func(Reports)) (list []event.Event) {
	t.Helper()
	r := Reports{events.NewBus("relay", "a", func(why string) string { return why }, func(event.Event) error { return nil })}
	report(r)
	stop := r.Begin()
	stop()
	for e := range r.Events() {
		list = append(list, e)
	}
	return list
}

func TestReports_say(t *testing.T) {
	t.Parallel()
	down := errors.New("down")
	letter := dlq.Entry{Reason: dlq.Reason("panic")}
	letter.Subject = "orders.eu"
	for _, c := range []struct {
		report func(Reports)
		kind   event.Kind
		text   string
		why    string
	}{
		{func(r Reports) { r.Stopped("billing", down) }, eventkind.RouteStopped, "route billing stopped; its messages wait, and the route retries by itself: down", "down"},
		{func(r Reports) { r.Dead("billing", letter) }, eventkind.DeadLetter, "dead-lettered by route billing (panic): panic", "panic"},
		{func(r Reports) { r.Fallback("billing", nil) }, eventkind.FallbackWorking, "the fallback of route billing works again", ""},
		{func(r Reports) { r.Fallback("billing", down) }, eventkind.FallbackFailing, "the fallback of route billing fails; its messages wait as if there were no fallback: down", "down"},
		{func(r Reports) { r.Holder("billing", "billing/3", "a", 7) }, eventkind.RouteHolder, "instance a has route billing/3 now (fence 7)", ""},
		{func(r Reports) { r.Trouble("billing", "bucket", down) }, eventkind.StreamTrouble, "not working, retrying: bucket: down", "bucket: down"},
		{func(r Reports) { r.Trouble("billing", "bucket", nil) }, eventkind.StreamMended, "working again: bucket", "bucket"},
	} {
		list := told(t, c.report)
		if len(list) != 1 || list[0].Kind != c.kind || list[0].Text != c.text || list[0].Why != c.why || list[0].Data.Route != "billing" {
			t.Errorf("want %s %q: %+v", c.kind, c.text, list)
		}
	}
}

func TestReports_Filling(t *testing.T) {
	t.Parallel()
	for onFull, next := range map[string]string{dlq.OnFullBlock: "new ones will be refused", dlq.OnFullDropOldest: "the oldest will be dropped"} {
		list := told(t, func(r Reports) { r.Filling(dlq.Usage{Entries: 9, MaxMsgs: 10}, onFull) })
		if len(list) != 1 || list[0].Kind != eventkind.DLQFilling || !strings.Contains(list[0].Text, "90 %") || !strings.Contains(list[0].Text, next) {
			t.Errorf("%s: %+v", onFull, list)
		}
	}
}

// Of what waits, only the begin and the end are told, of a key as of a route.
func TestReports_Moved(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		from, to     supervise.State
		key, route   event.Kind // empty: nothing is told
		until, names bool
	}{
		{supervise.Flowing, supervise.Waiting, eventkind.KeyWaiting, eventkind.RouteWaiting, true, false},
		{supervise.Probing, supervise.Waiting, "", "", false, false},
		{supervise.Waiting, supervise.Probing, "", "", false, false},
		{supervise.Probing, supervise.Flowing, eventkind.KeyFlowing, eventkind.RouteFlowing, false, false},
		{supervise.Probing, supervise.Suspended, eventkind.KeySuspended, eventkind.RouteSuspended, false, true},
	} {
		for _, route := range []bool{false, true} {
			kind, name := c.key, `key "eu" of route billing `
			e := supervise.Event{Route: route, Key: "eu", From: c.from, To: c.to, Why: "down", Delay: time.Minute}
			if route {
				kind, name, e.Key = c.route, "route billing ", ""
			}
			list := told(t, func(r Reports) { r.Moved("billing", e) })
			if kind == "" {
				if len(list) > 0 {
					t.Errorf("from %v to %v: %+v", c.from, c.to, list)
				}
				continue
			}
			if len(list) != 1 || list[0].Kind != kind || !strings.HasPrefix(list[0].Text, name) || !strings.Contains(list[0].Text, ": down") || list[0].Key != e.Key ||
				list[0].Until.IsZero() == c.until || strings.HasSuffix(list[0].Text, "relay resume billing") != c.names {
				t.Errorf("from %v to %v: %+v", c.from, c.to, list)
			}
		}
	}
}
