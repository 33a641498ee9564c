package waiting

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/cmd/relay/internal/cli"
	"github.com/relaymq/relay/cmd/relay/internal/routes"
	"github.com/relaymq/relay/internal/retry"
)

// Message is a message that waits, as --json prints it.
type Message struct {
	ID       string     `json:"id"`
	Where    string     `json:"where"` // durable or parked
	Routes   []string   `json:"routes"`
	Durable  string     `json:"durable"`
	Subject  string     `json:"subject,omitempty"` // of a parked one; the other's is in its stream
	Attempts int        `json:"attempts"`
	First    *time.Time `json:"first_failure,omitempty"`
	Last     *time.Time `json:"last_failure,omitempty"`
	Due      *time.Time `json:"due,omitempty"`
	Error    string     `json:"error,omitempty"`
	Dead     string     `json:"dead,omitempty"` // it is to be a dead letter that could not be stored yet
	Fault    string     `json:"fault,omitempty"`

	Stream   string        `json:"-"`
	Sequence uint64        `json:"-"`
	Made     time.Time     `json:"-"` // of one in its durable: when that was made
	Parked   *retry.Parked `json:"-"`
}

// Where a message waits.
const (
	inDurable = "durable"
	Parked    = "parked"
)

// ID names a message.
func ID(stream string, seq uint64) string { return stream + "/" + strconv.FormatUint(seq, 10) }

// ParseID reads what ID has written. Anything else is a wrong call.
func ParseID(s string) (stream string, seq uint64, err error) {
	i := strings.LastIndexByte(s, '/')
	if i > 0 {
		seq, err = strconv.ParseUint(s[i+1:], 10, 64)
	}
	if i <= 0 || err != nil || seq == 0 {
		return "", 0, fmt.Errorf("%w: %q names no message: write its stream and sequence, as in ORDERS/17 (relay retries ls shows them)", cli.ErrUsage, s)
	}
	return s[:i], seq, nil
}

// Reader reads what waits.
type Reader struct {
	Client *cli.Client
	Stream *retry.Stream       // nil when relay never ran here
	Routes map[string][]string // of each durable
	// Divided are the routes with partitions.
	Divided []string
}

// Open finds out which routes there are, and whether there is a retry stream.
func Open(ctx context.Context, cl *cli.Client) (*Reader, error) {
	known, err := routes.Known(ctx, cl)
	if err != nil {
		return nil, err
	}
	r := &Reader{Client: cl, Routes: make(map[string][]string)}
	for name, info := range known.Routes {
		durable := cli.Or(info.Durable, name)
		r.Routes[durable] = append(r.Routes[durable], name)
		slices.Sort(r.Routes[durable])
		if info.Divided {
			r.Divided = append(r.Divided, name)
		}
	}
	service := cl.Config.Service
	r.Stream, err = retry.AttachStream(ctx, cl.JS, service, retry.StreamName(service))
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		err = nil
	}
	return r, err
}

// Unknown refuses a route for which nothing waits, and which no instance and no configuration has: it is a typing mistake, and "nothing waits" would be taken for
// good news. Where no routes are known nobody can tell.
func (r *Reader) Unknown(route string) error {
	var names []string
	for durable, of := range r.Routes {
		if durable == route {
			return nil
		}
		names = append(names, of...)
	}
	for _, rt := range r.Client.Config.Routes {
		names = append(names, rt.Name)
	}
	if route == "" {
		return nil
	}
	return cli.Mistyped(route, names, "--route "+cli.Printable(route)+": there is no such route and nothing waits for it")
}

// Each calls f for what waits, of a route or of all, until f returns false.
func (r *Reader) Each(ctx context.Context, route string, f func(Message) bool) error {
	more := true
	bucket := retry.BucketName(r.Client.Config.Service)
	err := retry.ListWaiting(ctx, r.Client.JS, bucket, "", "", func(w retry.Waiting) bool {
		names := r.Routes[w.Durable]
		if route != "" && w.Durable != route && !slices.Contains(names, route) {
			return true
		}
		m := Message{
			ID: ID(w.Stream, w.Sequence), Where: inDurable, Routes: names, Durable: w.Durable, Attempts: w.Attempts, First: cli.KnownTime(w.FirstFailure),
			Last: cli.KnownTime(w.LastFailure), Due: cli.KnownTime(w.Due), Error: w.LastError, Dead: w.Dead, Stream: w.Stream, Sequence: w.Sequence, Made: w.Made,
		}
		if w.Err != nil {
			m.Fault = w.Err.Error()
		}
		more = f(m)
		return more
	})
	if err != nil || !more {
		return err
	}
	return r.EachParked(ctx, route, f)
}

// EachParked is Each, of what is parked in the retry stream.
func (r *Reader) EachParked(ctx context.Context, route string, f func(Message) bool) error {
	if r.Stream == nil {
		return nil
	}
	return r.Stream.ListParked(ctx, route, func(p retry.Parked) bool {
		m := Message{
			ID: ID(p.Stream, p.Sequence), Where: Parked, Routes: []string{p.Route}, Durable: p.Consumer, Subject: p.Subject, Attempts: p.Attempts,
			First: cli.KnownTime(p.FirstFailure), Last: cli.KnownTime(p.LastFailure), Due: cli.KnownTime(p.Due), Error: p.LastError, Stream: p.Stream, Sequence: p.Sequence, Parked: &p,
		}
		if p.Err != nil {
			m = Message{ID: fmt.Sprintf("(number %d of the retry stream)", p.Number), Where: Parked, Fault: p.Err.Error(), Parked: &p}
		}
		return f(m)
	})
}
