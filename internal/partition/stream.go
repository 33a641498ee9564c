package partition

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Start is where the copies of a stream begin; zero: nothing is copied yet.
type Start struct {
	Sequence uint64    `json:"sequence,omitempty"`
	Time     time.Time `json:"time,omitzero"`
}

func (s Start) isZero() bool { return s.Sequence == 0 && s.Time.IsZero() }

// Stream is that of a generation, as the server said.
type Stream struct {
	Generation
	Start Start
	Info  *jetstream.StreamInfo
}

const (
	metadata  = "relay.partition"
	ofService = "relay.service"
)

type mark struct {
	Route  string `json:"route"`
	Number int    `json:"generation"`
	Layout
	Start Start `json:"start"`
}

// Is tells whether a stream holds the partitions of a route.
func Is(c jetstream.StreamConfig) bool { return c.Metadata[metadata] != "" }

// Sources tells whether the server copies messages there.
func (s *Stream) Sources() bool { return sources(s.Info.Config) }

func sources(c jetstream.StreamConfig) bool {
	return len(c.Sources) == 1 && len(c.Sources[0].SubjectTransforms) > 0
}

// Find returns the streams of a route, the oldest generation first.
func Find(ctx context.Context, js jetstream.JetStream, service, route string) (list []*Stream, err error) {
	names := js.StreamNames(ctx, jetstream.WithStreamListSubject(Subjects(service, route)))
	for name := range names.Name() {
		s, err := js.Stream(ctx, name)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			continue // just now
		}
		if err != nil {
			return nil, err
		}
		if found, ok := Of(s.CachedInfo()); ok && found.Service == service && found.Route == route {
			list = append(list, found)
		}
	}
	slices.SortFunc(list, func(a, b *Stream) int { return cmp.Compare(a.Number, b.Number) })
	return list, names.Err()
}

// Of reads what a stream says of itself; false: it is none of a route's partitions.
func Of(info *jetstream.StreamInfo) (*Stream, bool) {
	var m mark
	if json.Unmarshal([]byte(info.Config.Metadata[metadata]), &m) != nil {
		return nil, false
	}
	s := &Stream{Generation{info.Config.Metadata[ofService], m.Route, m.Number, m.Layout}, m.Start, info}
	return s, s.Name() == info.Config.Name
}

// Behind is how many messages are not copied yet, and for how long the server has heard nothing from the stream that it copies: it hears every second or
// so while all is well. known is false while it does not copy, or has not found the stream.
func (s *Stream) Behind() (messages uint64, silent time.Duration, known bool) {
	if !s.Sources() || len(s.Info.Sources) != 1 || s.Info.Sources[0].Active < 0 {
		return 0, 0, false
	}
	return s.Info.Sources[0].Lag, s.Info.Sources[0].Active, true
}

// noSource is the source of the stream while it does not copy yet, or does not copy any more. It matches nothing: without a source the server would
// drop what has the message id of another one, which the user's stream has kept.
func (g Generation) noSource() *jetstream.StreamSource {
	return &jetstream.StreamSource{Name: g.Stream, FilterSubject: g.prefix() + "none"}
}

// source is the source of the stream while it copies.
func (g Generation) source(start Start) *jetstream.StreamSource {
	source := &jetstream.StreamSource{Name: g.Stream, OptStartSeq: start.Sequence}
	if !start.Time.IsZero() {
		source.OptStartTime = &start.Time
	}
	for _, t := range g.Transforms() {
		source.SubjectTransforms = append(source.SubjectTransforms, jetstream.SubjectTransformConfig(t))
	}
	return source
}

// streamConfig is the stream of the generation, with that source.
func (g Generation) streamConfig(start Start, source *jetstream.StreamSource, replicas int) jetstream.StreamConfig {
	value, _ := json.Marshal(mark{g.Route, g.Number, g.Layout, start})
	return jetstream.StreamConfig{
		Name: g.Name(), Subjects: []string{g.Filter()}, Sources: []*jetstream.StreamSource{source}, Replicas: replicas, Storage: jetstream.FileStorage,
		Description: fmt.Sprintf("relay: the messages of route %s from stream %s, in %d partitions", g.Route, g.Stream, g.Count),
		AllowMsgTTL: true, Metadata: map[string]string{metadata: string(value), ofService: g.Service},
	}
}

// Make makes the stream of a generation. [jetstream.ErrStreamNameAlreadyInUse] says that somebody else did.
func (g Generation) Make(ctx context.Context, js jetstream.JetStream, start Start, replicas int) (*Stream, error) {
	source := g.source(start)
	if start.isZero() {
		source = g.noSource()
	}
	there, err := js.CreateStream(ctx, g.streamConfig(start, source, replicas))
	if err != nil {
		return nil, err
	}
	s, ok := Of(there.CachedInfo())
	if !ok || s.Service != g.Service || s.Route != g.Route { // the server returns one that is the same but for its metadata
		return nil, fmt.Errorf("stream %s exists, but it does not belong to route %s", g.Name(), g.Route)
	}
	if s.Info.Config.Duplicates != 0 {
		_ = js.DeleteStream(ctx, g.Name())
		return nil, errors.New("partitions: this nats-server drops messages that have the id of another one when it copies them: use version 2.12 or later")
	}
	return s, nil
}

// Cut ends the copying, for good: from then on nothing can be added. What was on its way is copied by the next generation.
//
// In a cluster a stream is sealed beside what its servers still agree on: a message that was on its way may be stored a moment after the stream says that it
// is sealed (nats-server 2.15.2 looks at Sealed before it proposes a message, and not when it stores it). So first the stream refuses what has a header, as
// all messages of partitions have. Then a mark without one is stored behind all that was on its way. Only then the stream is sealed.
func (s *Stream) Cut(ctx context.Context, js jetstream.JetStream) error {
	if s.Info.Config.Sealed {
		return nil
	}
	err := s.cut(ctx, js)
	if err == nil {
		return nil
	}
	if now, gone := js.Stream(ctx, s.Name()); gone == nil && now.CachedInfo().Config.Sealed {
		s.Info = now.CachedInfo() // another instance was quicker
		return nil
	}
	return err
}

func (s *Stream) cut(ctx context.Context, js jetstream.JetStream) error {
	c := s.Info.Config
	c.Sources, c.Subjects, c.MaxMsgSize = nil, []string{s.Filter(), s.end()}, 1 // with a source the size would have to be that of the stream there
	if _, err := js.UpdateStream(ctx, c); err != nil {
		return err
	}
	if _, err := js.Publish(ctx, s.end(), nil); err != nil {
		return fmt.Errorf("ending stream %s: %w", s.Name(), err)
	}
	c.Sealed = true
	now, err := js.UpdateStream(ctx, c)
	if err == nil {
		s.Info = now.CachedInfo()
	}
	return err
}

// Running are the generations that instances work on. When one began to copy, those before it were through.
func Running(list []*Stream) []*Stream {
	for i := len(list) - 1; i > 0; i-- {
		if !list[i].Start.isZero() {
			return list[i:]
		}
	}
	return list
}

// lastCopied is the last message that the server copied; none: it copied nothing.
func (s *Stream) lastCopied(ctx context.Context, js jetstream.JetStream) (stored, origin uint64, err error) {
	stream, err := js.Stream(ctx, s.Name())
	if err != nil {
		return 0, 0, err
	}
	m, err := stream.GetLastMsgForSubject(ctx, s.Copied())
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return 0, 0, nil
	}
	if err != nil {
		return 0, 0, err
	}
	origin, ok := Source(m.Header.Get(SourceHeader))
	if !ok {
		return 0, 0, fmt.Errorf("message %d of stream %s does not say where it comes from", m.Sequence, s.Name())
	}
	return m.Sequence, origin, nil
}

// CopyOf is where the copy of a message of the user's stream is; 0: there is none, or not any more. It asks the server some twenty times: copies are in the
// order of what they are copies of.
func (s *Stream) CopyOf(ctx context.Context, js jetstream.JetStream, origin uint64) (stored uint64, err error) {
	stream, err := js.Stream(ctx, s.Name())
	if err != nil {
		return 0, err
	}
	for from, end := max(1, stream.CachedInfo().State.FirstSeq), stream.CachedInfo().State.LastSeq+1; from < end; {
		middle := from + (end-from)/2
		m, err := stream.GetMsg(ctx, middle, jetstream.WithGetMsgSubject(s.Copied()))
		if err != nil && !errors.Is(err, jetstream.ErrMsgNotFound) {
			return 0, err
		}
		is := uint64(math.MaxUint64) // behind the last copy
		if err == nil {
			is, _ = Source(m.Header.Get(SourceHeader))
		}
		switch {
		case is == origin:
			return m.Sequence, nil
		case is < origin:
			from = m.Sequence + 1
		default:
			end = middle
		}
	}
	return 0, nil
}

// settled is up to where a partition is settled, and whether nothing is left of it. The leader of a consumer may lag behind the stream, and then knows
// of nothing that waits: so what it has settled is compared with the last message of the partition.
func (s *Stream) settled(ctx context.Context, js jetstream.JetStream, stream jetstream.Stream, n int) (to uint64, through bool, err error) {
	last, err := stream.GetLastMsgForSubject(ctx, s.Part(n))
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return 0, true, nil
	}
	if err != nil {
		return 0, false, err
	}
	c, err := js.Consumer(ctx, s.Name(), s.DurableOf(n))
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	i := c.CachedInfo()
	return i.AckFloor.Stream, i.NumPending == 0 && i.NumAckPending == 0 && i.AckFloor.Stream >= last.Sequence, nil
}

// floor is up to where all partitions are settled, and whether anything after that is outstanding.
func (s *Stream) floor(ctx context.Context, js jetstream.JetStream) (floor uint64, busy bool, err error) {
	stream, err := js.Stream(ctx, s.Name())
	if err != nil {
		return 0, false, err
	}
	floor = stream.CachedInfo().State.LastSeq // before any partition is asked about
	for n := range s.Count {
		to, through, err := s.settled(ctx, js, stream, n)
		if err != nil {
			return 0, false, err
		}
		if !through {
			floor, busy = min(floor, to), true
		}
	}
	return floor, busy, nil
}

// While messages of the stream are outstanding, only what is settled and above these is purged. A purge has the server forget what it is about to
// deliver again, of all durables of the stream: it comes after AckWait then, or when its holder asks once more (nats-server 2.15.2, consumer.go, purge).
const (
	purgeFrom      = 100_000
	purgeFromBytes = 64 << 20
)

// Tender keeps the streams of a route: one instance at a time does.
type Tender struct {
	JS     jetstream.JetStream
	purged map[string]uint64 // the last sequence of a stream at its last purge
}

// Tend removes what all partitions have settled. Of former generations it ends the copying, and once everything of them is settled it has the
// newest one copy from where they ended. It returns how many former ones are not through, and has to be called again until there is none.
func (t *Tender) Tend(ctx context.Context, list []*Stream) (left int, err error) {
	list = Running(list)
	newest, former := list[len(list)-1], list[:len(list)-1]
	if newest.Sources() {
		return 0, t.purge(ctx, newest)
	}
	for _, s := range former {
		if err := s.Cut(ctx, t.JS); err != nil {
			return len(former), err
		}
	}
	for _, s := range former {
		if through, err := s.through(ctx, t.JS); err != nil {
			return len(former), err
		} else if !through {
			left++
		}
	}
	if left > 0 {
		return left, nil
	}
	return 0, t.handOver(ctx, former, newest)
}

// Delete removes former generations that are through and that no instance works on any more.
func (t *Tender) Delete(ctx context.Context, list []*Stream) error {
	for _, s := range list[:len(list)-len(Running(list))] {
		if err := t.JS.DeleteStream(ctx, s.Name()); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
			return err
		}
	}
	return nil
}

// through tells whether everything of a generation that was cut is settled.
func (s *Stream) through(ctx context.Context, js jetstream.JetStream) (bool, error) {
	stream, err := js.Stream(ctx, s.Name())
	if err != nil {
		return false, err
	}
	for n := range s.Count {
		if _, through, err := s.settled(ctx, js, stream, n); err != nil || !through {
			return false, err
		}
	}
	return true, nil
}

// Ending is a generation that others wait for: it can get nothing more soon, and is to be settled. It is for one goroutine at a time.
type Ending struct {
	Generation
	done int // so many of its partitions, the first ones, are settled for good
}

// Through tells whether the generation can get nothing more, and everything of it is settled. One that is gone was. It goes on where it stopped: a
// partition of a sealed stream that is settled stays so, and a busy server may not answer for all of them in the time of ctx.
func (e *Ending) Through(ctx context.Context, js jetstream.JetStream) (bool, error) {
	stream, err := js.Stream(ctx, e.Name())
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return true, nil
	}
	if err != nil || !stream.CachedInfo().Config.Sealed {
		return false, err
	}
	s := &Stream{Generation: e.Generation}
	for ; e.done < e.Count; e.done++ {
		if _, through, err := s.settled(ctx, js, stream, e.done); err != nil || !through {
			return false, err
		}
	}
	return true, nil
}

// handOver has the newest generation copy from where the former ones ended.
func (t *Tender) handOver(ctx context.Context, former []*Stream, newest *Stream) error {
	var start Start
	for _, s := range former { // the newest that copied anything knows
		_, origin, err := s.lastCopied(ctx, t.JS)
		switch {
		case err != nil:
			return err
		case origin > 0:
			start = Start{Sequence: origin + 1}
		case start.isZero():
			start = s.Start
		}
	}
	c, n := newest.streamConfig(start, newest.source(start), 1), newest.Info.Config
	n.Sources, n.Metadata = c.Sources, c.Metadata
	now, err := t.JS.UpdateStream(ctx, n)
	if err == nil {
		newest.Info, newest.Start = now.CachedInfo(), start
	}
	return err
}

// purge removes what is settled, but for the last message that was copied: by that the server knows where it goes on after a restart.
func (t *Tender) purge(ctx context.Context, s *Stream) error {
	last := s.Info.State.LastSeq
	if t.purged == nil {
		t.purged = make(map[string]uint64)
	}
	state := s.Info.State
	if state.Msgs < 2 || last == t.purged[s.Name()] && state.Msgs < purgeFrom {
		return nil
	}
	settled, busy, err := s.floor(ctx, t.JS)
	if err != nil {
		return err
	}
	if n := settled + 1 - min(settled+1, state.FirstSeq); busy && n < purgeFrom && float64(state.Bytes)*float64(n)/float64(state.Msgs) < purgeFromBytes {
		return nil
	}
	copied, _, err := s.lastCopied(ctx, t.JS)
	if err != nil {
		return err
	}
	if copied == 0 {
		copied = settled + 1
	}
	if to := min(settled+1, copied); to > s.Info.State.FirstSeq {
		stream, err := t.JS.Stream(ctx, s.Name())
		if err == nil {
			err = stream.Purge(ctx, jetstream.WithPurgeSequence(to))
		}
		if err != nil {
			return err
		}
	}
	t.purged[s.Name()] = last
	return nil
}

func (s Start) String() string {
	if s.isZero() {
		return "after the former generation"
	}
	if !s.Time.IsZero() {
		return "since " + s.Time.UTC().Format(time.RFC3339)
	}
	return fmt.Sprintf("at sequence %d", s.Sequence)
}

// putTimeout bounds Put.
const putTimeout = 5 * time.Second

// Put stores a message that has the headers of its origin. It blocks for some seconds at most.
func (g Generation) Put(ctx context.Context, js jetstream.JetStream, literal string, header nats.Header, data []byte) error {
	h := make(nats.Header, len(header))
	for name, values := range header {
		if !strings.HasPrefix(name, "Nats-") { // of the stream that it was in
			h[name] = values
		}
	}
	ctx, cancel := context.WithTimeout(ctx, putTimeout)
	defer cancel()
	_, err := js.PublishMsg(ctx, &nats.Msg{Subject: g.Moved(literal), Header: h, Data: data}, jetstream.WithExpectStream(g.Name()))
	return err
}
