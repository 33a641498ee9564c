package orphans

import (
	"context"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/partition"
	"github.com/relaymq/relay/internal/retry"
)

// WatchConfig is what a [Watch] works with. All of it is needed.
type WatchConfig struct {
	Search  Search
	Retries *retry.Stream
	Log     *slog.Logger
	// Reads are the durables of this instance, with those of routes that stand by, or that are not open: what is theirs waits for nobody else.
	Reads func() []Reads
	// Known tells whether a durable is one of this instance, or of a route that another instance handles or would handle.
	Known func(stream, route, durable string) bool
	// Divides tells whether this instance or another one works on the partitions of a stream.
	Divides func(*partition.Stream) bool
	// Count is how many messages of a stream have such a subject.
	Count func(ctx context.Context, stream, filter string) (uint64, error)
}

// Reads is a durable, and whose messages it reads.
type Reads struct {
	Stream, Durable string
	Routes          [][2]string // name and stream, as the retry stream has them
	// RouteOf is the route of a subject, or empty. It is nil while the durable is not open.
	RouteOf func(subject string) string
	Log     *slog.Logger
}

// Watch is what an instance finds of orphans by itself, at its start and hourly.
type Watch struct {
	cfg   WatchConfig
	found atomic.Pointer[[]Orphan]
}

// NewWatch returns one that has found nothing.
func NewWatch() *Watch { return new(Watch) }

// Found is what was found last.
func (w *Watch) Found() []Orphan {
	if list := w.found.Load(); list != nil {
		return *list
	}
	return nil
}

// Begin gives it what it works with. Run and Find may be called after that.
func (w *Watch) Begin(cfg WatchConfig) { w.cfg = cfg }

// Run looks for them at once and hourly, until ctx is done.
func (w *Watch) Run(ctx context.Context) {
	tick := time.NewTicker(time.Hour)
	defer tick.Stop()
	for {
		w.Find(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// askTimeout bounds one request.
const askTimeout = 5 * time.Second

// orphansLogged is how many of them the log names at a time.
const orphansLogged = 10

// Find gives messages that no route wanted to those that want them now, and says what still waits for nobody.
func (w *Watch) Find(ctx context.Context) {
	own := make(map[[2]string]bool)
	var streams []string
	for _, d := range w.cfg.Reads() {
		for _, of := range d.Routes {
			own[of] = true
		}
		if !slices.Contains(streams, d.Stream) {
			streams = append(streams, d.Stream)
		}
		if d.RouteOf == nil {
			continue
		}
		n, err := w.cfg.Retries.Move(ctx, retry.Move{From: retry.NoRoute, Stream: d.Stream, To: func(o retry.Origin) string {
			if o.Consumer == d.Durable {
				return d.RouteOf(o.Subject)
			}
			return ""
		}})
		if n > 0 {
			d.Log.Info("messages that no route wanted when they came go to the routes that want them now", "count", n)
		}
		if err != nil {
			d.Log.Debug("messages that no route wanted could not be searched", "error", err)
		}
	}
	var found []Orphan
	for _, name := range streams {
		if stream, err := w.cfg.Search.JS.Stream(ctx, name); err == nil {
			list, _ := w.cfg.Search.Durables(ctx, stream, func(route, durable string) bool { return w.cfg.Known(name, route, durable) })
			found = append(found, list...)
		}
	}
	found = append(found, w.leftPartitions(ctx)...)
	found = append(found, w.leftByOthers(ctx, streams)...)
	if !w.allRetriesAreOf(ctx, own) {
		list, err := w.cfg.Search.Retries(ctx, func(route, stream string) bool { return own[[2]string{route, stream}] })
		if err != nil {
			w.cfg.Log.Debug("the retry stream could not be searched for messages that wait for no route", "error", err)
			return
		}
		found = append(found, list...)
	}
	for i, o := range found {
		if i == orphansLogged && len(found) > i+1 {
			w.cfg.Log.Warn("more waits for routes that are not here: relay orphans ls", "more", len(found)-i)
			break
		}
		w.cfg.Log.Warn("something waits for a route that is not here", "orphan", o.String())
	}
	w.found.Store(&found)
}

// allRetriesAreOf tells whether the retry stream holds nothing but what waits for these routes and streams. To count those takes the server a moment; to
// list all subjects, to find the others, takes it seconds for a million, in which it does little else.
func (w *Watch) allRetriesAreOf(ctx context.Context, own map[[2]string]bool) bool {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	stream, err := w.cfg.Search.JS.Stream(ctx, w.cfg.Retries.Name())
	if err != nil {
		return false
	}
	total := stream.CachedInfo().State.Msgs
	if total == 0 || total < listedAtOnce {
		return total == 0
	}
	// What comes due meanwhile is counted once at most.
	for _, kind := range []string{".due.", ".park."} {
		for of := range own {
			n, err := w.cfg.Count(ctx, w.cfg.Retries.Name(), w.cfg.Search.Service+kind+of[0]+"."+of[1]+".>")
			if err != nil {
				return false
			}
			if n >= total {
				return true
			}
			total -= n
		}
	}
	return false
}

// listedAtOnce is below how many messages all subjects are listed in one answer of the server.
const listedAtOnce = 10_000

// leftByOthers is what services have left of which no instance runs. The user of an instance may see only its own streams: then there is nothing to tell.
func (w *Watch) leftByOthers(ctx context.Context, of []string) (list []Orphan) {
	names := w.cfg.Search.JS.StreamNames(ctx, jetstream.WithStreamListSubject("*.park.>"))
	for name := range names.Name() {
		if name == w.cfg.Retries.Name() {
			continue
		}
		ask, cancel := context.WithTimeout(ctx, askTimeout)
		if stream, err := w.cfg.Search.JS.Stream(ask, name); err == nil {
			if other := ServiceOf(stream.CachedInfo()); other != "" {
				more, err := w.cfg.Search.LeftBy(ask, other, of)
				if err != nil {
					w.cfg.Log.Debug("another service could not be searched for what it left", "service", other, "error", err)
				}
				list = append(list, more...)
			}
		}
		cancel()
	}
	return list
}

// leftPartitions are the streams of partitions that no instance works on.
func (w *Watch) leftPartitions(ctx context.Context) (list []Orphan) {
	names := w.cfg.Search.JS.StreamNames(ctx, jetstream.WithStreamListSubject(w.cfg.Search.Service+".part.>"))
	for name := range names.Name() {
		ask, cancel := context.WithTimeout(ctx, askTimeout)
		if stream, err := w.cfg.Search.JS.Stream(ask, name); err == nil {
			if s, ok := partition.Of(stream.CachedInfo()); ok && s.Service == w.cfg.Search.Service && !w.cfg.Divides(s) {
				left, err := w.cfg.Search.Partitions(ask, s)
				if err != nil {
					w.cfg.Log.Debug("a stream of partitions could not be searched for what is left there", "stream", name, "error", err)
				}
				list = append(list, left...)
			}
		}
		cancel()
	}
	return list
}
