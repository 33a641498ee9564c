package main

import (
	"encoding/binary"
	"fmt"
	"time"
)

// spec is what a contestant is to do. It is handed to its process as JSON.
type spec struct {
	Contestant string
	URL        string // of the nats-server
	Stream     string
	// Run names this turn: durables and routes begin with it.
	Run string
	// Routes cover the stream together. relay has one durable for all of them; the others have one durable each, filtered
	// unless there is but one route.
	Routes        [][]string
	Apart         bool   // relay has a durable for each, too
	Start         uint64 // first sequence; 0 is all
	MaxAckPending int
	Concurrency   int
	Batch         int // messages in a request; 0: one by one
	Handler       handlerSpec
	Seed          uint64
	Replicas      int    // of the streams and buckets that relay makes; 0 is one
	Profile       string // directory for profiles, of contestants that run inside their child
}

// handlerSpec is what is done with each message.
type handlerSpec struct {
	Kind    string // discard, sleep, http, exec, worker, request, failonce, refuse, latency
	Sleep   time.Duration
	URL     string
	Signed  bool   // http: by Standard Webhooks
	Key     string // its file, once there is one
	H2      bool   // http: over TLS and HTTP/2
	Counted bool   // http: the endpoint counts the messages that it saw
	Command []string
	Delay   time.Duration // until a message that failed comes again
	Until   int           // failonce: how many successes there must be; refuse: say done after so many refusals
	Percent int           // of the messages that fail once
	Warm    time.Time     // latency: messages from before are not counted
}

// defaultMaxAckPending is what relay gives its durables.
const defaultMaxAckPending = 65_536

// durables are the consumers of the spec, with their filters.
func (s *spec) durables() (names []string, filters [][]string) {
	if s.oneDurable() {
		return []string{s.Run}, [][]string{nil}
	}
	for i, subjects := range s.Routes {
		names = append(names, fmt.Sprintf("%s-%d", s.Run, i))
		filters = append(filters, subjects)
	}
	return names, filters
}

func (s *spec) oneDurable() bool { return len(s.Routes) == 1 || isRelay(s.Contestant) && !s.Apart }

func isRelay(contestant string) bool {
	switch contestant {
	case "library", "binary", "limited", "archived", "narrow", "limited-20", "singleton", "ordered", "partitioned":
		return true
	}
	return false
}

// result is what the process of a contestant says of itself at the end.
type result struct {
	Handled int64
	Mallocs uint64
	Latency *quantiles `json:",omitempty"`
	Error   string     `json:",omitempty"`
}

// stampLen bytes at the start of a body are the time it was published, then its number.
const stampLen = 16

func stamp(body []byte, at time.Time, n uint64) {
	binary.LittleEndian.PutUint64(body, uint64(at.UnixNano()))
	binary.LittleEndian.PutUint64(body[8:], n)
}

func stampOf(body []byte) (at time.Time, n uint64) {
	return time.Unix(0, int64(binary.LittleEndian.Uint64(body))), binary.LittleEndian.Uint64(body[8:])
}

// chosen tells whether message n is among percent of all, by the seed.
func chosen(seed, n uint64, percent int) bool {
	x := (n+1)*0x9e3779b97f4a7c15 ^ seed*0xbf58476d1ce4e5b9
	x ^= x >> 31
	x *= 0x94d049bb133111eb
	x ^= x >> 29
	return x%100 < uint64(percent)
}
