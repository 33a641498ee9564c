package pulls

import (
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/consumer/internal/link"
	"github.com/relaymq/relay/internal/natstest"
	"github.com/relaymq/relay/internal/provision"
)

// asked is what a pull asks for.
type asked struct {
	Batch     int           `json:"batch"`
	MaxBytes  int           `json:"max_bytes"`
	Expires   time.Duration `json:"expires"`
	Heartbeat time.Duration `json:"idle_heartbeat"`
	Group     string        `json:"group"`
	ID        string        `json:"id"`

	reply string
}

// bed is a Puller whose pulls the test answers.
type bed struct {
	t      *testing.T
	nc     *nats.Conn
	asks   *nats.Subscription
	unpins *nats.Subscription
	p      *Puller
	now    time.Time

	room              int
	leased, stop      bool
	full, doesNotHold bool
}

const testAPI = "$TEST.API."

func newBed(t *testing.T) *bed {
	t.Helper()
	b := &bed{t: t, nc: natstest.Start(t).Conn(t), room: 100, now: time.Now()}
	js, err := jetstream.New(b.nc)
	if err != nil {
		t.Fatal(err)
	}
	if b.asks, err = b.nc.SubscribeSync(testAPI + "CONSUMER.MSG.NEXT.ORDERS.a"); err != nil {
		t.Fatal(err)
	}
	if b.unpins, err = b.nc.SubscribeSync(testAPI + "CONSUMER.UNPIN.ORDERS.a"); err != nil {
		t.Fatal(err)
	}
	b.p = New(Config{
		Conn: b.nc, JS: js, API: testAPI, Stream: "ORDERS", Durable: "a", Log: slog.New(slog.DiscardHandler),
		Link: link.New(30 * time.Second), Durables: func() int { return 1 }, Among: func(d time.Duration) time.Duration { return 3 * d },
		DrainTime: func() time.Duration { return time.Second },
		Leased:    func() bool { return b.leased }, Lease: 1500 * time.Millisecond, Holds: func() bool { return !b.doesNotHold },
		Stops: func() bool { return b.stop }, Full: func() bool { return b.full },
		Room:   func() (int, int) { return b.room, 16 << 20 },
		InHand: func() (int, int) { return 0, 0 },
	})
	b.p.Open(0)
	if err := b.p.Subscribe(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		b.p.Leave()
		b.p.Close()
		b.p.Ended()
	})
	b.p.Start(b.now)
	return b
}

// ask has the puller ask, and returns the pulls that came of it.
func (b *bed) ask() (pulls []asked) {
	b.t.Helper()
	b.p.Ask(b.now)
	if err := b.nc.Flush(); err != nil {
		b.t.Fatal(err)
	}
	for {
		m, err := b.asks.NextMsg(time.Millisecond)
		if err != nil {
			return pulls
		}
		a := asked{reply: m.Reply}
		if err := json.Unmarshal(m.Data, &a); err != nil {
			b.t.Fatal(err)
		}
		pulls = append(pulls, a)
	}
}

// askOne has the puller ask, of which one pull must come.
func (b *bed) askOne() asked {
	b.t.Helper()
	pulls := b.ask()
	if len(pulls) != 1 {
		b.t.Fatalf("%d pulls: %+v", len(pulls), pulls)
	}
	return pulls[0]
}

// none has the puller ask, of which nothing must come.
func (b *bed) none(why string) {
	b.t.Helper()
	if pulls := b.ask(); len(pulls) > 0 {
		b.t.Errorf("%s: pulls %+v", why, pulls)
	}
}

// say is what the server says of a pull.
func (b *bed) say(a asked, code, text string, header ...string) Status {
	h := nats.Header{"Status": {code}, "Description": {text}}
	for i := 0; i+1 < len(header); i += 2 {
		h[header[i]] = []string{header[i+1]}
	}
	return b.p.Status(&nats.Msg{Subject: a.reply, Header: h}, b.now)
}

// deliver has the latest pull bring a message, and says whether it is told to be the first after a pause.
func (b *bed) deliver(a asked, header nats.Header) (first bool) {
	b.t.Helper()
	if err := b.nc.PublishMsg(&nats.Msg{Subject: a.reply, Header: header, Data: make([]byte, 100)}); err != nil {
		b.t.Fatal(err)
	}
	return b.p.Delivered(next(b.t, b.p.Inbox), b.now)
}

func (b *bed) outstanding() int {
	n, _ := b.p.requests.Outstanding()
	return n
}

func TestPuller_asksForWhatThereIsRoomFor(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.stop = true
	b.none("nothing may be pulled")
	b.stop, b.full = false, true
	b.none("too much waits for the server")
	b.full, b.doesNotHold = false, true
	b.none("another instance has the durable")
	b.doesNotHold, b.room = false, 0
	b.none("there is no room")

	b.room = 100
	first := b.askOne()
	if first.Batch != 100 || first.MaxBytes < link.LeastPull || first.Expires != Expires || first.Heartbeat != Heartbeat || first.Group != "" {
		t.Errorf("%+v", first)
	}
	b.none("half of it is still to come")
	for range 50 {
		if b.deliver(first, nil) {
			t.Fatal("told as the first one after a pause")
		}
	}
	if second := b.askOne(); second.Batch != 50 || second.reply == first.reply {
		t.Errorf("%+v", second)
	}
	if !b.p.Got().Equal(b.now) || !b.p.Heard().Equal(b.now) {
		t.Error("it does not know when a message came")
	}
	b.p.Anew()
	if b.outstanding() != 0 {
		t.Error("pulls are not given up")
	}
}

func TestPuller_parksOnePullAfterAPause(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.now = b.now.Add(idleAfter)
	parked := b.askOne()
	if parked.Batch != 1 || parked.Expires != longestPull || parked.MaxBytes < link.LeastPull {
		t.Errorf("%+v", parked)
	}
	b.none("one is parked")
	b.stop = true
	b.none("nothing may be pulled")
	if b.outstanding() != 0 {
		t.Error("what is parked is not taken back")
	}
	b.stop = false
	parked = b.askOne()
	if !b.deliver(parked, nil) {
		t.Error("the first one after a pause is not told")
	}
	if next := b.askOne(); next.Batch != 100 || next.Expires != Expires {
		t.Errorf("after the pause: %+v", next)
	}
}

func TestPuller_status(t *testing.T) {
	t.Parallel()
	const messages, bytes = "Nats-Pending-Messages", "Nats-Pending-Bytes"
	for name, c := range map[string]struct {
		code, text string
		header     []string
		left       int // of the pull
		want       Status
	}{
		"heartbeat":                  {"100", "Idle Heartbeat", nil, 100, Status{}},
		"expired":                    {"408", "Request Timeout", []string{messages, "100", bytes, "1"}, 0, Status{}},
		"no messages":                {"404", "No Messages", nil, 0, Status{}},
		"completed":                  {"409", "Batch Completed", []string{messages, "60", bytes, "10"}, 40, Status{}},
		"completed, without figures": {"409", "Batch Completed", nil, 0, Status{}},
		"too many bytes":             {"409", "Message Size Exceeds MaxBytes", []string{messages, "99", bytes, "10"}, 1, Status{}},
		"deleted":                    {"409", "Consumer Deleted", nil, 0, Status{Doubt: true, Deleted: true}},
		"no responders":              {"503", "", nil, 0, Status{Doubt: true}},
		"another pin":                {"423", "Nats-Wrong-Pin-Id", nil, 0, Status{Doubt: true}},
		"another leader":             {"409", "Leadership Change", nil, 0, Status{NewLeader: true}},
		"its server stops":           {"409", "Server Shutdown", nil, 0, Status{NewLeader: true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t)
			pull := b.askOne()
			b.now = b.now.Add(time.Millisecond)
			if got := b.say(pull, c.code, c.text, c.header...); got != c.want {
				t.Errorf("%+v, want %+v", got, c.want)
			}
			if n := b.outstanding(); n != c.left {
				t.Errorf("%d messages are outstanding, want %d", n, c.left)
			}
			if !b.p.Heard().Equal(b.now) {
				t.Error("that is not heard of the pull")
			}
			if waits := b.p.notYet.After(b.now); waits != (c.want != Status{}) {
				t.Errorf("it waits before it pulls again: %v", waits)
			}
		})
	}
	b := newBed(t)
	if got := b.p.Status(&nats.Msg{Subject: "some.thing", Header: nats.Header{"Status": {"409"}}}, b.now.Add(time.Hour)); got != (Status{}) || !b.p.Heard().Equal(b.now) {
		t.Errorf("what is no word about a pull: %+v", got)
	}
}

// A message that does not fit is asked for with more bytes, until that was long ago.
func TestPuller_aMessageThatDoesNotFit(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	pull := b.askOne()
	left := func(a asked) []string {
		return []string{"Nats-Pending-Messages", "100", "Nats-Pending-Bytes", jsonOf(a.MaxBytes)}
	}
	b.say(pull, "409", "Message Size Exceeds MaxBytes", left(pull)...)
	larger := b.askOne()
	if larger.MaxBytes != 2*pull.MaxBytes {
		t.Errorf("%d bytes after %d", larger.MaxBytes, pull.MaxBytes)
	}
	b.say(larger, "408", "Request Timeout")
	b.p.Tick()
	if again := b.askOne(); again.MaxBytes != pull.MaxBytes {
		t.Errorf("%d bytes a while later", again.MaxBytes)
	}
}

func jsonOf(v any) string {
	text, _ := json.Marshal(v)
	return string(text)
}

// After the server of a durable's leader had been killed, messages waited for up to 0.65 s longer than those of a plain consumer: the new leader says
// so of pulls that are given up by then, and the next pull came when the back-off of the election was over.
func TestPuller_regressionANewLeaderIsAskedAtOnce(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	pull := b.askOne()
	say := func(status, text string) time.Duration {
		b.say(pull, status, text)
		return b.p.notYet.Sub(b.now)
	}
	for i := range electingTries {
		if wait := say("503", ""); wait > 300*time.Millisecond {
			t.Fatalf("refusal %d: a wait of %v", i+1, wait)
		}
	}
	if wait := say("503", ""); wait != time.Second {
		t.Errorf("after longer than an election: a wait of %v", wait)
	}
	b.now = b.now.Add(time.Second)
	b.askOne() // while there was no leader
	if wait := say("409", "Leadership Change"); wait != electingPause {
		t.Errorf("there is a leader: a wait of %v", wait)
	}
	if b.outstanding() > 0 {
		t.Error("messages are waited for that nobody was asked for")
	}
	b.now = b.now.Add(2 * electingPause)
	b.askOne()
	say("409", "Leadership Change")
	if b.outstanding() == 0 {
		t.Error("another pull that is told has the new one given up")
	}
}

// While a leader is elected, a pull that nobody hears is made anew soon.
func TestPuller_elections(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.say(b.askOne(), "503", "")
	b.none("a refused pull is not made anew at once")
	b.now = b.now.Add(time.Second)
	pull := b.askOne()
	if pull.Heartbeat != electingHeartbeat || pull.Expires != Expires {
		t.Errorf("%+v", pull)
	}
	b.none("one at a time")
	b.now = b.now.Add(electingSilence)
	b.none("nobody heard it")
	if b.outstanding() != 0 {
		t.Error("it is still waited for")
	}
	b.now = b.now.Add(time.Second + missedHeartbeats)
	if pull = b.askOne(); pull.Batch != 1 {
		t.Errorf("the link may stand still: %+v", pull)
	}
	b.deliver(pull, nil)
	if pull = b.askOne(); pull.Heartbeat != Heartbeat || pull.Batch != 100 {
		t.Errorf("there is a leader: %+v", pull)
	}
	b.p.Reconnected()
	if pulls := b.ask(); len(pulls) != 1 {
		t.Errorf("%d pulls on the new connection", len(pulls))
	}
}

func TestPuller_isLost(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	if b.p.IsLost(b.now.Add(time.Hour)) {
		t.Error("there is no pull that could be lost")
	}
	b.askOne()
	if b.now = b.now.Add(missedHeartbeats); b.p.IsLost(b.now) {
		t.Error("lost too early")
	}
	if b.now = b.now.Add(time.Millisecond); !b.p.IsLost(b.now) || b.outstanding() != 0 {
		t.Error("a lost pull is waited for")
	}
}

func TestPuller_pins(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.leased = true
	pull := b.askOne()
	if pull.Batch != 1 || pull.Group != provision.PinGroup || pull.ID != "" || pull.Expires != 1500*time.Millisecond {
		t.Errorf("before the server has pinned it: %+v", pull)
	}
	b.none("the pin is not known")
	header := nats.Header{pinHeader: {"P1"}}
	if err := b.nc.PublishMsg(&nats.Msg{Subject: pull.reply, Header: header}); err != nil {
		t.Fatal(err)
	}
	m := next(t, b.p.Inbox)
	b.p.Delivered(m, b.now)
	if m.Header != nil {
		t.Errorf("the handler would see %v", m.Header)
	}
	pull = b.askOne()
	if pull.ID != "P1" || pull.Batch != 100 {
		t.Errorf("%+v", pull)
	}
	if st := b.say(pull, "423", "Nats-Wrong-Pin-Id"); !st.Doubt || b.outstanding() != 0 {
		t.Errorf("%+v, %d outstanding", st, b.outstanding())
	}
	if m, err := b.unpins.NextMsg(10 * time.Second); err != nil || !strings.Contains(string(m.Data), provision.PinGroup) {
		t.Errorf("whoever was pinned is not thrown out: %v", err)
	}
	b.now = b.now.Add(time.Second)
	if pull = b.askOne(); pull.ID != "" || pull.Batch != 1 {
		t.Errorf("with another pin to come: %+v", pull)
	}
}

// The delivery that tells the pin may be lost. The server gave nothing then until it forgot the pin, a minute later.
func TestPuller_regressionThePinIsLostOnItsWay(t *testing.T) {
	t.Parallel()
	for what, lose := range map[string]func(b *bed){
		"with the connection":                   func(b *bed) { b.p.Reconnected() },
		"with the pull":                         func(b *bed) { b.now = b.now.Add(time.Minute); b.p.IsLost(b.now) },
		"and the server gives nothing any more": func(b *bed) { b.p.Anew() },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			b := newBed(t)
			b.leased = true
			b.askOne()
			lose(b)
			if _, err := b.unpins.NextMsg(10 * time.Second); err != nil {
				t.Errorf("the server is not told to forget it: %v", err)
			}
			b.now = b.now.Add(time.Second)
			if pull := b.askOne(); pull.ID != "" {
				t.Errorf("%+v", pull)
			}
		})
	}
}

// What has arrived before is handed on when a pull is about to end, and the drain waits for that.
func TestPuller_drain(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	pull := b.askOne()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		b.p.Stop()
	}()
	if !IsEnd(next(t, b.p.Inbox)) {
		t.Error("something came")
	}
	b.none("it drains")
	b.say(pull, "408", "Request Timeout", "Nats-Pending-Messages", "90", "Nats-Pending-Bytes", "0")
	if b.outstanding() != 10 {
		t.Error("the rest of a pull that is over is not waited for")
	}
	b.say(pull, "408", "Request Timeout")
	b.none("it drains")
	select {
	case <-b.p.allOver:
	default:
		t.Error("that no pull is about to end is not said")
	}
	b.p.Drained()
	<-stopped
}
