package consumer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/relaymq/relay/internal/audit"
	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/orders"
	"github.com/relaymq/relay/supervisor"
)

// gathered are the metrics of a relay: "name{label,label}", with the values of the labels.
func gathered(t *testing.T, r *Relay) map[string]float64 {
	t.Helper()
	reg := prometheus.NewRegistry() // a pedantic one would miss what is not known yet
	reg.MustRegister(r.Collector())
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := make(map[string]float64)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetValue())
			}
			values[f.GetName()+"{"+strings.Join(labels, ",")+"}"] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return values
}

// ACK PENDING and relay_ack_pending said 0 while NATS said 128: only retries had the server asked.
func TestStatus_regressionWhatIsOutstandingIsCountedWhileHandlersRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	release := make(chan struct{})
	r, _ := w.start(Config{}, Route{Name: "billing", Subjects: []string{"orders.>"}, Concurrency: 4, Handler: HandlerFunc(func(ctx context.Context, _ *Msg) error {
		select {
		case <-release:
		case <-ctx.Done():
		}
		return nil
	})})
	w.publish("orders.eu", 100)
	w.eventually("handlers run", func() bool { return r.Status().Routes[0].Running == 4 })
	var s RouteStatus
	w.eventually("the status says what the server says", func() bool {
		a, err := control.Ask(t.Context(), w.nc, "relay", control.StatusRequest{})
		if err != nil || len(a.Bad) > 0 {
			t.Fatalf("%v, %v", err, a.Bad)
		}
		s = a.Instances[0].Routes[0]
		info := w.info("ORDERS", "billing")
		return s.Backlog != nil && s.Backlog.Outstanding == info.NumAckPending && s.Backlog.Outstanding > 0 &&
			s.Backlog.Stream == info.NumPending && s.Backlog.Stream+uint64(s.Backlog.Outstanding) == 100
	})
	got := gathered(t, r)
	for name, want := range map[string]float64{
		"relay_ack_pending{billing,ORDERS}":           float64(s.Backlog.Outstanding),
		"relay_backlog_messages{billing,outstanding}": float64(s.Backlog.Outstanding),
		"relay_backlog_messages{billing,stream}":      float64(s.Backlog.Stream),
		"relay_route_state{billing,flowing}":          1,
		"relay_route_up{billing}":                     1,
		"relay_ready{}":                               1,
	} {
		if v, ok := got[name]; !ok || v != want {
			t.Errorf("%s is %v (%v), want %v", name, v, ok, want)
		}
	}
	close(release)
	w.settled("ORDERS", "billing")
}

// A route that waits had route_up 1 and no waiting keys.
func TestStatus_regressionARouteThatWaitsIsNotUpAndItsKeysWait(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r, _ := w.start(Config{}, Route{
		Name: "billing", Subjects: []string{"orders.>"}, Handler: HandlerFunc(func(context.Context, *Msg) error { return errors.New("down") }),
		Supervisor: supervisor.Config{RouteTrip: supervisor.RouteTrip{Of: new(5)}, Restart: supervisor.Backoff{Min: time.Minute, Max: time.Minute}},
	})
	for i := range 10 {
		w.publish(fmt.Sprint("orders.", i), 3)
	}
	w.eventually("the route waits, and its keys with it", func() bool {
		s := r.Status().Routes[0]
		return s.State == control.StateWaiting && s.Keys["waiting"] > 0 && s.Keys["flowing"] == 0
	})
	got := gathered(t, r)
	if got["relay_route_up{billing}"] != 0 || got["relay_route_state{billing,waiting}"] != 1 || got["relay_route_state{billing,flowing}"] != 0 || got["relay_keys{billing,waiting}"] == 0 {
		t.Errorf("metrics %v", got)
	}
	s := r.Status().Routes[0]
	if s.Since == nil || s.Until == nil || !strings.Contains(s.Why, "down") {
		t.Errorf("%+v", s)
	}
	w.order(orders.Order{Route: "billing", State: orders.Paused, Why: "migration", By: "eve@host"}, r)
	if s := r.Status().Routes[0]; s.State != control.StatePaused || s.Pause == nil || s.Pause.By != "eve@host" {
		t.Errorf("%+v", s)
	}
	if got := gathered(t, r); got["relay_route_up{billing}"] != 0 || got["relay_route_state{billing,paused}"] != 1 {
		t.Errorf("metrics %v", got)
	}
}

func TestStatus_regressionADrainingInstanceSaysSo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	release := make(chan struct{})
	r, stop := w.start(Config{}, Route{Name: "billing", Subjects: []string{"orders.>"}, Handler: HandlerFunc(func(context.Context, *Msg) error {
		<-release
		return nil
	})})
	w.publish("orders.eu", 1)
	w.eventually("a handler runs", func() bool { return r.Status().Routes[0].Running == 1 })
	ended := make(chan error, 1)
	go func() { ended <- stop() }()
	w.eventually("the instance says that it drains", func() bool {
		list, err := control.AskStatus(t.Context(), w.nc, "relay")
		return err == nil && len(list) == 1 && list[0].Draining && list[0].Routes[0].State == control.StateDraining
	})
	if got := gathered(t, r); got["relay_route_up{billing}"] != 0 || got["relay_route_state{billing,draining}"] != 1 {
		t.Errorf("metrics %v", got)
	}
	close(release)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// What is parked was told of all routes together.
func TestStatus_countsWhatIsParkedByRoute(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.stream("IMAGES", "images.>")
	later := HandlerFunc(func(context.Context, *Msg) error { return RetryIn(time.Hour, errors.New("not today")) })
	a, stop := w.start(Config{}, Route{Name: "billing", Subjects: []string{"orders.>"}, Handler: later}, Route{Name: "thumbs", Subjects: []string{"images.>"}, Handler: later})
	w.publish("orders.eu", 3)
	w.publish("images.a", 2)
	w.eventually("they are parked", func() bool {
		return a.engine.Routes.All()[0].Count.Parked.Load() == 3 && a.engine.Routes.All()[1].Count.Parked.Load() == 2
	})
	w.eventually("what this instance parked itself is counted", func() bool { // how soon goes by how long a count takes: see TestCount of package backlog
		b := a.Status().Routes[0].Backlog
		return b != nil && b.Parked != nil && *b.Parked == 3
	})
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	b, _ := w.start(Config{}, Route{Name: "billing", Subjects: []string{"orders.>"}, Handler: later}, Route{Name: "thumbs", Subjects: []string{"images.>"}, Handler: later})
	w.eventually("each route says its own", func() bool {
		x, y := b.Status().Routes[0].Backlog, b.Status().Routes[1].Backlog
		return x != nil && y != nil && x.Parked != nil && y.Parked != nil && *x.Parked == 3 && *y.Parked == 2
	})
}

// 3,600 keys of control bytes made the answer larger than a message may be, and operators were told that nobody answers.
func TestAsk_regressionKeysThatBlindOperatorsComeInPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r, _ := w.start(Config{Logger: quiet}, countingRoute(newLedger()))
	const n = 800 // 4 MB; 3,600 take longer than one waits for an answer, under the race detector beside others
	for i := range n {
		r.engine.Routes.All()[0].Group.SuspendKey(strings.Repeat("\x01", 1000)+fmt.Sprint(i), strings.Repeat("\x02", 5000))
	}
	for keys, want := range map[int]int{-1: 0, 0: 100, 50: 50, 10_000: n} {
		a, err := control.Ask(t.Context(), w.nc, "relay", control.StatusRequest{Keys: keys})
		for try := 0; try < 5 && err != nil; try++ { // a busy machine
			a, err = control.Ask(t.Context(), w.nc, "relay", control.StatusRequest{Keys: keys})
		}
		if err != nil || len(a.Bad) > 0 || len(a.Instances) != 1 {
			t.Fatalf("%d keys: %v, %v", keys, err, a.Bad)
		}
		s := a.Instances[0].Routes[0]
		if len(s.Waiting) != want || s.WaitingMore != n-want || s.Stream != "ORDERS" {
			t.Errorf("asked for %d keys: got %d, and %d more", keys, len(s.Waiting), s.WaitingMore)
		}
		for _, k := range s.Waiting[:min(want, 1)] {
			if k.KeyBytes < 1000 || !strings.HasSuffix(k.Why, "… (5000 bytes)") || len(k.Key) > 300 {
				t.Errorf("key of %d bytes, %d of them shown, why %q", k.KeyBytes, len(k.Key), k.Why[len(k.Why)-20:])
			}
		}
	}
}

// relay dlq --route waited 400 ms for more answers after the one that had the route.
func TestAskUntil_endsWithTheAnswerThatIsLookedFor(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	other := w.s.Conn(t)
	_, err := other.Subscribe(control.StatusSubject("relay"), func(m *nats.Msg) {
		for _, name := range []string{"a", "b", "c"} {
			_ = m.Respond(fmt.Appendf(nil, `{"instance":%q,"service":"relay","page":1,"pages":1}`, name))
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Flush(); err != nil {
		t.Fatal(err)
	}
	for looked, want := range map[string]int{"a": 1, "b": 2, "z": 3} {
		a, err := control.AskUntil(t.Context(), w.nc, "relay", control.StatusRequest{}, func(s Status) bool { return s.Instance == looked })
		if err != nil || len(a.Instances) != want || len(a.Bad) > 0 {
			t.Errorf("looking for %s: %v, %+v", looked, err, a)
		}
	}
}

// Whoever may subscribe to the subject could answer: one answer that is none ended status, pause and replay.
func TestAsk_regressionBadAnswersAreLeftOutAndNamed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(Config{Instance: "a"}, countingRoute(newLedger()))
	other := w.s.Conn(t)
	answers := []string{
		"\x1b[2J", `{"instance":"a","service":"relay","page":1,"pages":1}`, `{"instance":"","service":"relay","page":1,"pages":1}`,
		`{"instance":"b","service":"other","page":1,"pages":1}`, `{"instance":"c","service":"relay","page":2,"pages":1}`, `[]`, ``,
	}
	answered, err := other.SubscribeSync("_INBOX.>")
	if err != nil {
		t.Fatal(err)
	}
	_, err = other.Subscribe(control.StatusSubject("relay"), func(m *nats.Msg) {
		for first := ""; first != m.Reply; { // the instance is first
			seen, err := answered.NextMsg(5 * time.Second)
			if err != nil {
				return
			}
			first = seen.Subject
		}
		for _, text := range answers {
			_ = m.Respond([]byte(text))
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Flush(); err != nil {
		t.Fatal(err)
	}
	a, err := control.Ask(t.Context(), w.nc, "relay", control.StatusRequest{})
	if err != nil || len(a.Instances) != 1 || len(a.Instances[0].Routes) != 1 || len(a.Bad) != len(answers) {
		t.Errorf("%v, instances %+v, bad %q", err, a.Instances, a.Bad)
	}
}

// Every metric is in the table, and what the table says is so.
func TestMetrics_docsHaveThemAll(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	rt := countingRoute(newLedger())
	rt.Limits = []string{"gateway"}
	r, _ := w.start(Config{Archive: Archive{Outcomes: true}, Limits: map[string]Limit{"gateway": {Concurrency: 100}}}, rt)
	w.publish("orders.eu", 1)
	w.settled("ORDERS", "billing")
	audited := func() *audit.Balance {
		return r.engine.Running.Units()[0].Tally.Balance()
	}
	w.eventually("everything was counted once", func() bool {
		s := r.Status().Routes[0]
		_, oldest := r.engine.Routes.All()[0].Oldest()
		_, jobs := r.engine.Upkeep.Operated()
		return s.Stored != nil && s.Backlog != nil && s.Backlog.Parked != nil && oldest && jobs && audited() != nil
	})
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(r.Collector())
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, f := range families {
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, "`"+l.GetName()+"`")
		}
		kind := strings.ToLower(dto.MetricType_name[int32(f.GetType())])
		want = append(want, fmt.Sprintf("| `%s` | %s | %s |", f.GetName(), kind, strings.Join(labels, ", ")))
	}
	text, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	var have []string
	for _, line := range strings.Split(string(text), "\n") {
		if cells := strings.SplitN(line, "|", 5); strings.HasPrefix(line, "| `relay_") && len(cells) == 5 {
			have = append(have, strings.Join(cells[:4], "|")+"|")
		}
	}
	for _, line := range want {
		if !slices.Contains(have, line) {
			t.Errorf("docs/metrics.md lacks %s", line)
		}
	}
	for _, line := range have {
		if !slices.Contains(want, line) {
			t.Errorf("docs/metrics.md has what there is not: %s", line)
		}
	}
}

// The documentation of RouteStatus has all states, and no other.
func TestRouteStatus_documentsTheStates(t *testing.T) {
	source, err := os.ReadFile("status.go")
	if err != nil {
		t.Fatal(err)
	}
	listed := []string{control.StateFlowing}
	for _, line := range regexp.MustCompile(`(?m)^\t//\t([a-z]+) {2,}\S`).FindAllStringSubmatch(string(source), -1) {
		listed = append(listed, line[1])
	}
	if !slices.Equal(listed, control.States) {
		t.Errorf("documented: %q\nthere are:  %q", listed, control.States)
	}
}
