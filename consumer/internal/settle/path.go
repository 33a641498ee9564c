// Package settle settles messages: it acknowledges them, gives them back, parks them in the retry stream or has them dead-lettered, and keeps those
// whose outcome cannot be stored. This is the whole of what may become of a message:
//
//	Settle ── Ack, Drop ─▶ Owner.Finish: whoever waits for it is told, and it is acknowledged
//	  ├ GiveBack ── it spent no attempt: a NAK, or parked when many wait (aside.go)
//	  ├ LetGo ── nothing: somebody else has it, or it comes again by itself
//	  ├ RetryLater ── its attempt is recorded, then a NAK with a delay; or it is parked with its attempts (failed.go)
//	  └ DeadLetter ── stored in the dead letters, then as Ack (letters.go)
//
// In all of them what must not be forgotten is stored first, and only then the durable hears of it. What cannot be stored is held, with its lease, and
// tried again. A message whose lease is lost is let go: another instance may have it.
package settle

import (
	"context"
	"log/slog"
	"time"

	"github.com/relaymq/relay/ack"
	"github.com/relaymq/relay/consumer/internal/health"
	"github.com/relaymq/relay/consumer/internal/letters"
	"github.com/relaymq/relay/consumer/internal/metrics"
	"github.com/relaymq/relay/consumer/internal/parking"
	"github.com/relaymq/relay/consumer/internal/stores"
	"github.com/relaymq/relay/consumer/internal/suspects"
	"github.com/relaymq/relay/consumer/internal/tally"
	"github.com/relaymq/relay/consumer/internal/unstored"
	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/pool"
	"github.com/relaymq/relay/internal/retry"
	"github.com/relaymq/relay/internal/supervise"
	"github.com/relaymq/relay/internal/trouble"
)

// Timeout bounds one call to the server. A time-out proves nothing.
const Timeout = 5 * time.Second

// Paths is how many settlements of a route that block on the server run at once.
const Paths = 256

// Config is of a route. Its functions are called by many goroutines, and must not block.
type Config struct {
	Log           *slog.Logger
	Route         string // its name, for everybody outside
	Instance      string
	LettersPrefix string // what the subjects of its dead letters begin with
	Ordered       bool   // order: key
	Guarded       bool   // its handlers run in this process, and a message may end it
	Stores        *stores.Stores
	Solo          *suspects.Solo
	Count         *metrics.RouteCount
	Tally         *tally.RouteCount
	Troubles      *trouble.List
	// CalledBackFrom is from how many outstanding messages on its ones that are called back leave the durable.
	CalledBackFrom int
	Policy         func() Policy
	NotStored      func()                   // a stream or bucket of relay has not taken something
	More           func()                   // there is room for more messages again
	Gone           func(*supervise.Message) // a message that was put aside is not in its durable any more
	Dead           func(dlq.Entry)          // this is a dead letter now
}

// Policy is what a reload may change for a route that runs.
type Policy struct {
	ParkAfter  time.Duration
	MaxCrashes int
	Room       retry.Room // for what the route parks
}

// Path is how the messages of a route are settled. What may block on the server runs on goroutines of its own: no route waits for the trouble of
// another one.
type Path struct {
	Config
	// Work is done when nothing may be stored any more. It is set before the first message comes.
	Work context.Context

	slow    *pool.Pool
	letters *letters.Queue
	held    unstored.List
	aside   *parking.Queue
	said    struct{ unparked, undead, unacquitted trouble.Throttle }
}

// New makes the path of a route.
func New(c Config) *Path {
	return &Path{Config: c, slow: pool.New(Paths), letters: letters.New(Paths), aside: parking.NewQueue(c.More)}
}

// Go runs f, which may block on the server, soon.
func (p *Path) Go(f func()) { p.slow.Go(f) }

// Room is the room in the retry stream for messages of the route.
func (p *Path) Room() retry.Room { return p.share(1) }

// share is that part of the room.
func (p *Path) share(of int) retry.Room {
	room := p.Policy().Room
	return retry.Room{Messages: max(1, room.Messages/of), Bytes: max(1, room.Bytes/int64(of))}
}

// Full tells whether so many wait to be parked that no more should be pulled. Config.More is called when that is over.
func (p *Path) Full() bool { return p.aside.Full() }

// Trouble is why dead letters cannot be stored, if so.
func (p *Path) Trouble(now time.Time) error { return p.letters.Trouble(now) }

// Held is how many messages wait here because their outcome cannot be stored.
func (p *Path) Held() int { return p.held.Len() }

// Unparked is how often the retry stream has not taken messages that spent no attempt.
func (p *Path) Unparked() int { return p.aside.Failures() }

// Retry tries again to store the outcomes of held messages, and has the log say how many there are. It is called every [unstored.Every].
func (p *Path) Retry(now time.Time) {
	p.held.Say(now, p.Log)
	for _, try := range p.held.Take(now) {
		p.slow.Go(try)
	}
}

// End tries to store what is held a last time, and waits until all is settled; what cannot be stored is let go. No more messages come to the path.
func (p *Path) End() {
	for _, try := range p.held.End() {
		p.slow.Go(try)
	}
	p.slow.Wait() // before the letters, to which it submits
	p.letters.Wait()
	p.aside.Wait()
}

// Durable is where the messages of one or more routes come from.
type Durable struct {
	Stream, Name string
	Due          bool        // on the retry stream
	Leased       func() bool // one instance at a time works on its messages
	Draining     func() bool // nothing is pulled from it any more
	Health       health.Health

	// Set when it is open:
	Session *ack.Session
	Records *retry.Records
}
