package client

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/internal/natstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, natstest.Leaks()...) }

// world is a server with a stream, and a client on it.
type world struct {
	t *testing.T
	s *natstest.Server
	c *Client
}

func newWorld(t *testing.T, stream jetstream.StreamConfig, opts ...Option) *world {
	t.Helper()
	s := natstest.Start(t)
	w := &world{t: t, s: s}
	nc := s.Conn(t)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	stream.Name, stream.Subjects = "ORDERS", []string{"orders.>"}
	if _, err := js.CreateStream(t.Context(), stream); err != nil {
		t.Fatal(err)
	}
	if w.c, err = New(nc, opts...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.c.Close)
	return w
}

// relay runs a route over the stream until the test ends.
func (w *world) relay(handle consumer.HandlerFunc, change ...func(*consumer.Route)) {
	w.t.Helper()
	rt := consumer.Route{
		Name: "billing", Subjects: []string{"orders.>"}, Start: consumer.Start{Policy: "all"}, Handler: handle,
		Caller: consumer.Caller{Reply: []string{"_INBOX.>"}, Interest: []string{"_INBOX.>"}},
	}
	for _, f := range change {
		f(&rt)
	}
	r, err := consumer.New(w.s.Conn(w.t, nats.ReconnectBufSize(-1)), consumer.Config{}, rt)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	w.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Error(err)
		}
	})
}

func (w *world) patient() context.Context {
	ctx, cancel := context.WithTimeout(w.t.Context(), 30*time.Second)
	w.t.Cleanup(cancel)
	return ctx
}

func msg(subject, body string) *nats.Msg { return &nats.Msg{Subject: subject, Data: []byte(body)} }

// Each way in which a call can end is told apart.
func TestClient_Do(t *testing.T) {
	w := newWorld(t, jetstream.StreamConfig{})
	w.relay(func(_ context.Context, m *consumer.Msg) error {
		switch string(m.Data) {
		case "dead":
			return consumer.Dead(errors.New("it cannot be"))
		case "drop":
			return consumer.Drop("nobody needs it")
		}
		m.Reply([]byte("result of " + string(m.Data)))
		return nil
	})
	r, err := w.c.Do(w.patient(), msg("orders.1", "this"))
	if err != nil || string(r.Data) != "result of this" || r.Attempts != 1 || r.ID == "" || r.Truncated {
		t.Fatalf("%+v, %v", r, err)
	}
	all := []error{ErrDead, ErrDropped, ErrExpired, ErrForgotten, ErrTimedOut}
	for body, want := range map[string]error{"dead": ErrDead, "drop": ErrDropped, "expired": ErrExpired} {
		m := msg("orders.2", body)
		if body == "expired" {
			m.Header = nats.Header{"Relay-Expires-In": {"0s"}}
		}
		_, err := w.c.Do(w.patient(), m)
		for _, e := range all {
			if errors.Is(err, e) != (e == want) {
				t.Errorf("%s: %v is %v: %v", body, err, e, errors.Is(err, e))
			}
		}
		var told *OutcomeError
		if !errors.As(err, &told) || told.ID == "" || told.Text == "" {
			t.Errorf("%s: %#v", body, err)
		}
		if len(m.Header) > 1 {
			t.Errorf("the message was changed: %v", m.Header)
		}
	}
}

// Without anybody who handles the message Do ends with its context, and says which of the ends that was.
func TestClient_Do_endsWithItsContext(t *testing.T) {
	w := newWorld(t, jetstream.StreamConfig{})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := w.c.Do(ctx, msg("orders.1", "")); !errors.Is(err, ErrTimedOut) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("timed out: %v", err)
	}
	mind := errors.New("changed it")
	changed, change := context.WithCancelCause(t.Context())
	time.AfterFunc(50*time.Millisecond, func() { change(mind) })
	if _, err := w.c.Do(changed, msg("orders.1", "")); !errors.Is(err, mind) || errors.Is(err, ErrTimedOut) {
		t.Errorf("cancelled: %v", err)
	}
	if _, err := w.c.Do(changed, msg("orders.1", "")); !errors.Is(err, mind) {
		t.Errorf("over before: %v", err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 2*time.Second) // long enough for the refusal to arrive
	defer cancel()
	if _, err := w.c.Do(ctx, msg("nowhere", "")); !errors.Is(err, ErrTimedOut) || !errors.Is(err, ErrNoStream) {
		t.Errorf("no stream: %v", err)
	}
}

// A message whose caller gave up before it could start is never started; one that runs goes on when its caller does not ask for more.
func TestClient_giveUpBeforeTheStart(t *testing.T) {
	w := newWorld(t, jetstream.StreamConfig{})
	ctx, cancel := context.WithCancel(t.Context())
	gaveUp := make(chan error, 1)
	if err := w.c.Start(ctx, msg("orders.1", "unwanted"), func(_ *Result, err error) { gaveUp <- err }); err != nil {
		t.Fatal(err)
	}
	if _, _, err := w.c.Publish(w.patient(), msg("orders.1", "behind it")); err != nil { // so the first one is stored too
		t.Fatal(err)
	}
	cancel()
	if err := <-gaveUp; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	started := make(chan string, 10)
	w.relay(func(_ context.Context, m *consumer.Msg) error { started <- string(m.Data); return nil })
	if _, err := w.c.Do(w.patient(), msg("orders.2", "wanted")); err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{<-started: true, <-started: true}
	if !got["behind it"] || !got["wanted"] || len(started) > 0 {
		t.Errorf("started: %v and %d more", got, len(started))
	}
}

// Ten thousand calls cost no goroutine and no subscription each, and leave nothing behind, though their results come too late.
func TestClient_manyCalls(t *testing.T) {
	w := newWorld(t, jetstream.StreamConfig{})
	const n = 10_000
	before, subs := runtime.NumGoroutine(), w.c.nc.NumSubscriptions()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var over sync.WaitGroup
	over.Add(n)
	for i := range n {
		if err := w.c.Start(ctx, msg(fmt.Sprintf("orders.%d", i), ""), func(_ *Result, err error) {
			if !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			over.Done()
		}); err != nil {
			t.Fatal(err)
		}
	}
	if more := runtime.NumGoroutine() - before; more > n/2 { // timers and the server have some of their own, for moments
		t.Errorf("%d more goroutines", more)
	}
	if got := w.c.nc.NumSubscriptions(); got != subs {
		t.Errorf("%d subscriptions, %d before", got, subs)
	}
	cancel()
	over.Wait()
	late := &nats.Msg{Subject: w.c.prefix + "1." + kindOutcome, Header: nats.Header{"Relay-Outcome": {"done"}}}
	if err := w.c.nc.PublishMsg(late); err != nil {
		t.Fatal(err)
	}
	if err := w.c.nc.Flush(); err != nil {
		t.Fatal(err)
	}
	w.c.mu.Lock()
	defer w.c.mu.Unlock()
	if len(w.c.calls) > 0 {
		t.Errorf("%d calls are left", len(w.c.calls))
	}
}

// A full stream slows the sender down, and says so; when there is room the message is stored, once.
func TestClient_Publish_fullStream(t *testing.T) {
	waits := make(chan error, 100)
	w := newWorld(t, jetstream.StreamConfig{MaxMsgs: 1, Discard: jetstream.DiscardNew}, OnWait(func(subject string, why error, next time.Duration) {
		if subject != "orders.1" || next <= 0 || next > maxPause {
			t.Errorf("waits for %s, %v", subject, next)
		}
		select {
		case waits <- why:
		default:
		}
	}))
	if stream, seq, err := w.c.Publish(w.patient(), msg("orders.1", "")); err != nil || stream != "ORDERS" || seq != 1 {
		t.Fatal(stream, seq, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second) // long enough for the refusal to arrive
	defer cancel()
	if _, _, err := w.c.Publish(ctx, msg("orders.1", "")); !errors.Is(err, ErrFull) || !errors.Is(err, ErrTimedOut) {
		t.Errorf("full: %v", err)
	}
	for len(waits) > 0 {
		<-waits
	}
	js, err := jetstream.New(w.c.nc)
	if err != nil {
		t.Fatal(err)
	}
	st, err := js.Stream(t.Context(), "ORDERS")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, _, err := w.c.Publish(w.patient(), msg("orders.1", "later"))
		done <- err
	}()
	if err := <-waits; !errors.Is(err, ErrFull) {
		t.Errorf("waits because %v", err)
	}
	if err := st.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if info, err := st.Info(t.Context()); err != nil || info.State.Msgs != 1 {
		t.Errorf("%+v, %v", info, err)
	}
}

// A server that says "too many requests" is asked again.
func TestClient_Publish_busyServer(t *testing.T) {
	waits := make(chan error, 100)
	w := newWorld(t, jetstream.StreamConfig{}, OnWait(func(_ string, why error, _ time.Duration) { waits <- why }))
	var asked atomic.Int64
	if _, err := w.c.nc.Subscribe("busy.1", func(m *nats.Msg) {
		answer := `{"error": {"code": 429, "err_code": 10167, "description": "too many requests"}}`
		if asked.Add(1) == 3 {
			answer = `{"stream": "BUSY", "seq": 7}`
		}
		_ = m.Respond([]byte(answer))
	}); err != nil {
		t.Fatal(err)
	}
	if stream, seq, err := w.c.Publish(w.patient(), msg("busy.1", "")); err != nil || stream != "BUSY" || seq != 7 {
		t.Errorf("%s %d %v", stream, seq, err)
	}
	if len(waits) < 2 {
		t.Fatalf("waited %d times", len(waits))
	}
	if err := <-waits; !errors.Is(err, ErrFull) || !strings.Contains(err.Error(), "10167") {
		t.Errorf("waits because %v", err)
	}
}

// That there is no stream is believed when nobody has answered for a while, not when one try of a long call finds nobody.
func TestCall_absence(t *testing.T) {
	var a absence
	start := time.Now()
	for _, look := range []struct {
		after      time.Duration
		reconnects uint64
		answered   bool // before
		want       time.Duration
	}{
		{after: time.Minute, want: 0},
		{after: time.Minute + 3*time.Second, want: 3 * time.Second},
		{after: 2 * time.Minute, answered: true, want: 0},
		{after: 2*time.Minute + noStreamFor, want: noStreamFor},
		{after: 3 * time.Minute, reconnects: 1, want: 0},
		{after: 3*time.Minute + time.Second, reconnects: 1, want: time.Second},
	} {
		if look.answered {
			a = absence{}
		}
		if got := a.nobody(start.Add(look.after), look.reconnects); got != look.want {
			t.Errorf("%+v: nobody for %v", look, got)
		}
	}
}

// A call outlives a restart of the server: whoever waits gets the result.
func TestClient_Do_overARestart(t *testing.T) {
	w := newWorld(t, jetstream.StreamConfig{})
	running, release := make(chan struct{}, 100), make(chan struct{})
	w.relay(func(ctx context.Context, m *consumer.Msg) error {
		running <- struct{}{}
		select {
		case <-release:
		case <-ctx.Done():
			return ctx.Err()
		}
		m.Reply([]byte("it came"))
		return nil
	})
	done := make(chan error, 1)
	go func() {
		r, err := w.c.Do(w.patient(), msg("orders.1", ""))
		if err == nil && string(r.Data) != "it came" {
			err = fmt.Errorf("%q", r.Data)
		}
		done <- err
	}()
	<-running
	w.s.Stop()
	close(release) // the result is there while nobody can be told
	w.s.Restart()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// Close ends what waits.
func TestClient_Close(t *testing.T) {
	w := newWorld(t, jetstream.StreamConfig{})
	done := make(chan error, 1)
	if err := w.c.Start(t.Context(), msg("orders.1", ""), func(_ *Result, err error) { done <- err }); err != nil {
		t.Fatal(err)
	}
	w.c.Close()
	w.c.Close()
	if err := <-done; !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if _, err := w.c.Do(t.Context(), msg("orders.1", "")); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}

// cutOff has a new client publish n messages to a route that has work for two seconds, and has do disturb its link meanwhile. Each call
// must have its result.
func cutOff(t *testing.T, n int, do func(p *natstest.Proxy)) {
	t.Helper()
	t.Parallel()
	w := newWorld(t, jetstream.StreamConfig{})
	p := natstest.NewProxy(t, w.s.URL())
	nc, err := nats.Connect(p.URL(), nats.MaxReconnects(-1), nats.ReconnectWait(200*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	c, err := New(nc)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var over sync.WaitGroup
	var mu sync.Mutex
	wrong := map[string]int{}
	for i := range n {
		over.Add(1)
		if err := c.Start(t.Context(), msg(fmt.Sprintf("orders.%d", i), strconv.Itoa(i)), func(r *Result, err error) {
			defer over.Done()
			if err == nil && string(r.Data) == strconv.Itoa(i) {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			wrong[fmt.Sprint(err)]++
		}); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := w.c.Publish(w.patient(), msg("orders.last", "last")); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2500 * time.Millisecond) // they wait for longer than an age might count
	w.relay(func(ctx context.Context, m *consumer.Msg) error {
		pause, end := context.WithTimeout(ctx, 100*time.Millisecond)
		defer end()
		<-pause.Done()
		m.Reply(m.Data)
		return nil
	})
	time.Sleep(200 * time.Millisecond)
	do(p)
	over.Wait()
	if len(wrong) > 0 {
		t.Errorf("of %d: %v", n, wrong)
	}
}

// A caller who is away for a moment loses nothing: neither what waits, nor results of what ends meanwhile.
func TestClient_regressionCutOff(t *testing.T) {
	for _, away := range []time.Duration{50 * time.Millisecond, 800 * time.Millisecond, 1500 * time.Millisecond, 3500 * time.Millisecond} {
		t.Run(away.String(), func(t *testing.T) {
			cutOff(t, 1000, func(p *natstest.Proxy) {
				p.Stall()
				p.Cut()
				time.Sleep(away)
				p.Resume()
			})
		})
	}
}

// The server passes on to a link that has gone silent, and what is on it is lost when it breaks.
func TestClient_regressionSilentLink(t *testing.T) {
	for _, silent := range []time.Duration{100 * time.Millisecond, 1500 * time.Millisecond} {
		t.Run(silent.String(), func(t *testing.T) {
			cutOff(t, 1000, func(p *natstest.Proxy) {
				p.Stall()
				time.Sleep(silent)
				p.Cut()
				p.Resume()
			})
		})
	}
}

// Without a deadline a call ends all the same: after a long absence, when the connection is closed, when its message is a copy, and at
// the latest after MaxWait.
func TestClient_noCallWithoutAnEnd(t *testing.T) {
	t.Parallel()
	start := func(w *world, nc *nats.Conn, opts ...Option) (*Client, <-chan error) {
		c, err := New(nc, opts...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		c.patience, c.silence = 100*time.Millisecond, 300*time.Millisecond
		done := make(chan error, 1)
		if err := c.Start(t.Context(), msg("orders.1", ""), func(_ *Result, err error) { done <- err }); err != nil {
			t.Fatal(err)
		}
		if _, _, err := c.Publish(w.patient(), msg("orders.1", "")); err != nil { // so the first one is stored too
			t.Fatal(err)
		}
		return c, done
	}
	t.Run("away for long", func(t *testing.T) {
		w := newWorld(t, jetstream.StreamConfig{})
		p := natstest.NewProxy(t, w.s.URL())
		nc, err := nats.Connect(p.URL(), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		_, done := start(w, nc)
		p.Stall()
		p.Cut()
		time.Sleep(200 * time.Millisecond)
		p.Resume()
		if err := <-done; !errors.Is(err, ErrUnknown) {
			t.Error(err)
		}
	})
	t.Run("closed", func(t *testing.T) {
		w := newWorld(t, jetstream.StreamConfig{})
		nc, err := nats.Connect(w.s.URL())
		if err != nil {
			t.Fatal(err)
		}
		_, done := start(w, nc)
		nc.Close()
		if err := <-done; !errors.Is(err, ErrClosed) || !errors.Is(err, nats.ErrConnectionClosed) {
			t.Error(err)
		}
	})
	t.Run("a copy", func(t *testing.T) {
		w := newWorld(t, jetstream.StreamConfig{})
		m := msg("orders.1", "")
		m.Header = nats.Header{"Nats-Msg-Id": {"order 7"}}
		if _, _, err := w.c.Publish(w.patient(), m); err != nil {
			t.Fatal(err)
		}
		if _, err := w.c.Do(t.Context(), m); !errors.Is(err, ErrDuplicate) {
			t.Error(err)
		}
	})
	t.Run("never handled", func(t *testing.T) {
		w := newWorld(t, jetstream.StreamConfig{})
		_, done := start(w, w.s.Conn(t), MaxWait(300*time.Millisecond))
		if err := <-done; !errors.Is(err, ErrTimedOut) {
			t.Error(err)
		}
	})
}

// Work that runs for a caller who gives up is cancelled at once, though the next question is far away, and nobody waits until his absence
// counts.
func TestClient_regressionGivingUpCancelsAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, jetstream.StreamConfig{})
	running, ended := make(chan struct{}, 1), make(chan error, 1)
	w.relay(func(ctx context.Context, m *consumer.Msg) error {
		running <- struct{}{}
		<-ctx.Done()
		ended <- context.Cause(ctx)
		return ctx.Err()
	}, func(rt *consumer.Route) { rt.Interest.Every = 3 * time.Second })
	asked := make(chan struct{}, 100)
	sub, err := w.s.Conn(t).Subscribe(w.c.prefix+"*."+kindQuestion, func(*nats.Msg) { asked <- struct{}{} })
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	ctx, giveUp := context.WithCancel(t.Context())
	if err := w.c.Start(ctx, msg("orders.1", ""), func(*Result, error) {}); err != nil {
		t.Fatal(err)
	}
	<-running
	time.Sleep(time.Second)
	for len(asked) > 0 {
		<-asked // before it ran
	}
	<-asked // while it runs
	time.Sleep(50 * time.Millisecond)
	for len(asked) > 0 {
		<-asked
	}
	giveUp()
	if cause := <-ended; cause != consumer.ErrForgotten {
		t.Errorf("ended by %v", cause)
	}
	if n := len(asked); n > 0 {
		t.Errorf("it was asked %d times more", n)
	}
}
