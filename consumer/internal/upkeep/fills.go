package upkeep

import (
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/relaymq/relay/internal/archive"
	"github.com/relaymq/relay/internal/events"
)

// fill is how much of a bound of one of relay's own streams is used.
type fill struct {
	stream, bound string // bound: bytes, messages or age
	ratio         float64
	// next is what happens at 100 %, and what to do. Empty is a bound that is there to be reached: the age at which something goes.
	next string
	text string
	// said elsewhere in the log.
	said bool
}

// fillsOf tells how full a stream is. Buckets have no bound but their keys, and nothing is said of them.
func (u *Upkeep) fillsOf(info *jetstream.StreamInfo, now time.Time) (list []fill) {
	st, name := info.State, info.Config.Name
	add := func(bound, key string, have, most float64, next string) {
		if most > 0 {
			f := fill{stream: name, bound: bound, ratio: have / most, next: next}
			f.text = fmt.Sprintf("stream %s holds %d messages and %d bytes: %.0f %% of %s; %s", name, st.Msgs, st.Bytes, 100*f.ratio, key, next)
			list = append(list, f)
		}
	}
	age := 0.0
	if st.Msgs > 0 {
		age = max(0, now.Sub(st.FirstTime).Seconds())
	}
	c, letters := info.Config, u.cfg.Stores.DeadLetters(nil, nil).Streams()
	switch name {
	case u.cfg.Stores.RetryStream():
		p := u.cfg.Parked
		const full = "at 100 %, failing messages are not parked and wait in their durables: fix what fails (relay retries ls), or raise "
		add("bytes", "parked.max_bytes", float64(st.Bytes), float64(p.Bytes), full+"parked.max_bytes")
		add("messages", "parked.max_msgs", float64(st.Msgs), float64(p.Messages), full+"parked.max_msgs")
		add("age", "parked.max_age, by the oldest", age, p.Age.Seconds(),
			"nothing is removed: check whether its route is paused or gone (relay orphans ls), or raise parked.max_age")
	case events.StreamName(u.cfg.Stores.Service):
		const full = "at 100 %, the oldest events are removed before they reach events.max_age: raise "
		add("bytes", "events.max_bytes", float64(st.Bytes), float64(max(c.MaxBytes, 0)), full+"events.max_bytes")
		add("messages", "events.max_msgs", float64(st.Msgs), float64(max(c.MaxMsgs, 0)), full+"events.max_msgs")
		add("age", "events.max_age", age, c.MaxAge.Seconds(), "")
	case archive.StreamName(u.cfg.Stores.Service):
		const full = "at 100 %, the oldest records are removed before they reach archive.max_age: raise "
		add("bytes", "archive.max_bytes", float64(st.Bytes), float64(max(c.MaxBytes, 0)), full+"archive.max_bytes")
		add("messages", "archive.max_msgs", float64(st.Msgs), float64(max(c.MaxMsgs, 0)), full+"archive.max_msgs")
		add("age", "archive.max_age", age, c.MaxAge.Seconds(), "")
	case letters[0].Name, letters[1].Name:
		full := "at 100 % " + whenDeadAreFull(u.cfg.Stores.Letters.OnFull) + ", or raise "
		add("bytes", "dlq.max_bytes", float64(st.Bytes), float64(max(c.MaxBytes, 0)), full+"dlq.max_bytes")
		add("messages", "dlq.max_msgs", float64(st.Msgs), float64(max(c.MaxMsgs, 0)), full+"dlq.max_msgs")
		add("age", "dlq.max_age", age, c.MaxAge.Seconds(), "")
		for i := range list {
			list[i].said = true // by retention
		}
	}
	return list
}

// fills are those of all streams, as they were last seen. How full they are is no matter of readiness: a relay that is taken out of service
// because of it would help nobody.
type fills struct {
	mu   sync.Mutex
	list []fill
	said map[string]time.Time // when the log said it of a stream and bound
}

// note keeps them, and has the log say once an hour which are nearly full.
func (s *fills) note(list []fill, now time.Time, log *slog.Logger) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = list
	if s.said == nil {
		s.said = make(map[string]time.Time)
	}
	for _, f := range list {
		key := f.stream + " " + f.bound
		last, before := s.said[key]
		switch full := f.nearly() && !f.said; {
		case full && (!before || now.Sub(last) >= repeatWarning):
			s.said[key] = now
			log.Warn("one of relay's own streams is nearly full", "stream", f.stream, "bound", f.bound, "percent", int(100*f.ratio), "next", f.next)
		case !full && before:
			delete(s.said, key)
			log.Info("one of relay's own streams has room again", "stream", f.stream, "bound", f.bound, "percent", int(100*f.ratio))
		}
	}
}

func (f fill) nearly() bool { return f.next != "" && f.ratio >= nearlyFull }

// troubles are lines for the status.
func (s *fills) troubles() (lines []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.list {
		if f.nearly() {
			lines = append(lines, f.text)
		}
	}
	return lines
}

var fillRatio = prometheus.NewDesc("relay_stream_fill_ratio",
	"Used share of each bound of relay's own streams, by bound: bytes, messages or age. Absent where there is no such bound.", []string{"stream", "bound"}, nil)

func (s *fills) collect(ch chan<- prometheus.Metric) {
	s.mu.Lock()
	list := slices.Clone(s.list)
	s.mu.Unlock()
	for _, f := range list {
		ch <- prometheus.MustNewConstMetric(fillRatio, prometheus.GaugeValue, f.ratio, f.stream, f.bound)
	}
}
