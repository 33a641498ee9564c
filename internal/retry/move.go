package retry

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/ownstream"
	"github.com/relaymq/relay/internal/removal"
)

// Messages wait in the retry stream under the name of their route. When that is renamed or taken away, nobody gets them any
// more. They are found by their subjects, and moved to another route.

// Kept is how many messages of a route, from one stream, are in the retry stream.
type Kept struct {
	Route  string // [NoRoute]: of messages that no route wanted
	Stream string // that they come from
	Parked int    // wait for their time
	Due    int    // wait to be consumed
}

// Kept counts what the stream holds, by route and stream. Its cost grows with the number of messages.
func (r *Stream) Kept(ctx context.Context) ([]Kept, error) {
	type of struct{ route, stream string }
	all := make(map[of]*Kept)
	err := Subjects(ctx, r.js, r.name, r.service+".>", func(subject string, n int) {
		kind, rest, _ := strings.Cut(strings.TrimPrefix(subject, r.service+"."), ".")
		route, rest, _ := strings.Cut(rest, ".")
		stream, _, ok := strings.Cut(rest, ".")
		if !ok {
			return // not relay's
		}
		k := all[of{route, stream}]
		if k == nil {
			k = &Kept{Route: route, Stream: stream}
			all[of{route, stream}] = k
		}
		if kind == "park" {
			k.Parked += n
		} else {
			k.Due += n
		}
	})
	if err != nil {
		return nil, err
	}
	var list []Kept
	for _, k := range all {
		list = append(list, *k)
	}
	slices.SortFunc(list, func(a, b Kept) int {
		return strings.Compare(a.Route+" "+a.Stream, b.Route+" "+b.Stream)
	})
	return list, nil
}

// Subjects calls f for each subject of a stream that the filter matches, with how many messages it has. They are read in pages.
func Subjects(ctx context.Context, js jetstream.JetStream, stream, filter string, f func(subject string, n int)) error {
	for offset := 0; ; {
		request, err := json.Marshal(map[string]any{"subjects_filter": filter, "offset": offset})
		if err != nil {
			return err
		}
		m, err := js.Conn().RequestWithContext(ctx, ownstream.APIPrefix(js)+"STREAM.INFO."+stream, request)
		if err != nil {
			return fmt.Errorf("listing the subjects of stream %s: %w", stream, err)
		}
		var page struct {
			Error *jetstream.APIError `json:"error"`
			Total int                 `json:"total"`
			State struct {
				Subjects map[string]int `json:"subjects"`
			} `json:"state"`
		}
		if err := json.Unmarshal(m.Data, &page); err != nil {
			return fmt.Errorf("listing the subjects of stream %s: %w", stream, err)
		}
		if page.Error != nil {
			return fmt.Errorf("listing the subjects of stream %s: %w", stream, page.Error)
		}
		for subject, n := range page.State.Subjects {
			f(subject, n)
		}
		if offset += len(page.State.Subjects); len(page.State.Subjects) == 0 || offset >= page.Total {
			return nil
		}
	}
}

// Move says which messages go to which route.
type Move struct {
	From, Stream string
	// After is a sequence of the retry stream: what is not behind it is left alone.
	After uint64
	// To names the new route of a message; empty leaves it where it is.
	To func(o Origin) string
	// Into is the retry stream of another service that gets them. Nil: they stay in this one.
	Into *Stream
	// Moved, if not nil, is told of each, as it was before.
	Moved func(Parked)
}

// Move gives messages to another route. Each is stored anew, confirmed, before the old one is removed, so that nothing is lost
// whenever this ends; a second run goes on where the first one ended. Nobody should consume what is moved.
func (r *Stream) Move(ctx context.Context, m Move) (moved int, err error) {
	stream, err := r.js.Stream(ctx, r.name)
	if err != nil {
		return 0, err
	}
	last := stream.CachedInfo().State.LastSeq // what is moved comes behind it
	for _, filter := range []string{r.service + ".park." + m.From + "." + m.Stream + ".*", r.DueSubjects(m.From, m.Stream)} {
		for next := m.After + 1; next > 0 && next <= last; {
			var page []*nats.Msg
			if page, next, err = r.readFrom(ctx, filter, next); err != nil {
				return moved, err
			}
			for _, msg := range page {
				if ctx.Err() != nil {
					return moved, ctx.Err()
				}
				o, err := UnwrapOrigin(msg.Header)
				if err != nil || o.Stream != m.Stream || parkedSequence(msg) > last {
					continue // not relay's, of another stream, or moved just now
				}
				to := m.To(o)
				if to == "" || to == m.From && m.Into == nil {
					continue
				}
				if err := r.moveOne(ctx, stream, msg, o, to, cmp.Or(m.Into, r)); err != nil {
					return moved, err
				}
				moved++
				if m.Moved != nil {
					m.Moved(Parked{Number: parkedSequence(msg), Origin: o, Data: msg.Data, raw: msg})
				}
			}
		}
	}
	return moved, nil
}

func (r *Stream) moveOne(ctx context.Context, stream jetstream.Stream, msg *nats.Msg, o Origin, to string, into *Stream) error {
	due := time.Now()
	if at, ok := strings.CutPrefix(msg.Header.Get("Nats-Schedule"), "@at "); ok {
		if t, err := time.Parse(time.RFC3339Nano, at); err == nil && t.After(due) {
			due = t
		}
	}
	seq := parkedSequence(msg)
	header := maps.Clone(msg.Header)
	maps.DeleteFunc(header, func(name string, _ []string) bool { return hasPrefixFold(name, "Nats-") })
	delete(header, headerRoute)
	delete(header, headerRoute+suffix64)
	setText(header, headerRoute, to)
	// Two who move the same message store it once.
	header.Set(jetstream.MsgIDHeader, fmt.Sprintf("moved-%s-%d-%d", to, seq, o.Time.UnixNano()))
	o.Route = to
	if err := into.park(ctx, o, header, msg.Data, due, 0); err != nil {
		return err
	}
	if err := removal.Delete(ctx, stream, seq); err != nil {
		return fmt.Errorf("removing message %d, which is moved: %w", seq, err)
	}
	return nil
}

// TakeOut calls store for each message of a route from one stream, parked or due, and removes it after store returned nil: store must
// have it for certain by then. It returns how many went, with an error that ended it, and leaves alone what is not relay's. Nobody
// should consume what is taken out.
func (r *Stream) TakeOut(ctx context.Context, route, from string, store func(Parked) error) (n int, err error) {
	for _, filter := range []string{r.service + ".park." + route + "." + from + ".*", r.DueSubjects(route, from)} {
		stream, err := r.js.Stream(ctx, r.name)
		if err != nil {
			return n, err
		}
		last := stream.CachedInfo().State.LastSeq
		for next := uint64(1); next > 0 && next <= last; {
			var page []*nats.Msg
			if page, next, err = r.readFrom(ctx, filter, next); err != nil {
				return n, err
			}
			for _, msg := range page {
				if ctx.Err() != nil {
					return n, ctx.Err()
				}
				p := Parked{Number: parkedSequence(msg), Data: msg.Data, raw: msg}
				if p.Origin, p.Header, p.Err = Unwrap(msg.Header); p.Err != nil || p.Route != route || p.Stream != from {
					continue
				}
				if err := store(p); err != nil {
					return n, fmt.Errorf("message %d: %w", p.Number, err)
				}
				if err := removal.Delete(ctx, stream, p.Number); err != nil {
					return n, fmt.Errorf("removing message %d, which is stored: %w", p.Number, err)
				}
				n++
			}
		}
	}
	return n, nil
}
