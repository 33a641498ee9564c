package program

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/ack"
	"github.com/relaymq/relay/cmd/relay/internal/cli"
)

// retry is a message that waits, as --json prints it.
type retry struct {
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

	stream   string
	sequence uint64
	made     time.Time // of one in its durable: when that was made
	parked   *ack.Parked
}

const (
	inDurable = "durable"
	isParked  = "parked"
)

func retryID(stream string, seq uint64) string { return stream + "/" + strconv.FormatUint(seq, 10) }

func parseRetryID(s string) (stream string, seq uint64, err error) {
	i := strings.LastIndexByte(s, '/')
	if i > 0 {
		seq, err = strconv.ParseUint(s[i+1:], 10, 64)
	}
	if i <= 0 || err != nil || seq == 0 {
		return "", 0, fmt.Errorf("%w: %q names no message: write its stream and sequence, as in ORDERS/17 (relay retries ls shows them)", cli.ErrUsage, s)
	}
	return s[:i], seq, nil
}

// retries reads what waits.
type retries struct {
	cl     *cli.Client
	stream *ack.RetryStream    // nil when relay never ran here
	routes map[string][]string // of each durable
}

func openRetries(ctx context.Context, cl *cli.Client) (*retries, error) {
	known, err := knownRoutes(ctx, cl)
	if err != nil {
		return nil, err
	}
	r := &retries{cl: cl, routes: make(map[string][]string)}
	for name, info := range known.known {
		durable := cli.Or(info.durable, name)
		r.routes[durable] = append(r.routes[durable], name)
		slices.Sort(r.routes[durable])
	}
	service := cl.Config.Service
	r.stream, err = ack.AttachRetryStream(ctx, cl.JS, service, strings.ToUpper(service)+"_RETRY")
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		err = nil
	}
	return r, err
}

// each calls f for what waits, of a route or of all, until f returns false.
func (r *retries) each(ctx context.Context, route string, f func(retry) bool) error {
	more := true
	bucket := strings.ToUpper(r.cl.Config.Service) + "_ATTEMPTS"
	err := ack.ListWaiting(ctx, r.cl.JS, bucket, "", "", func(w ack.Waiting) bool {
		names := r.routes[w.Durable]
		if route != "" && w.Durable != route && !slices.Contains(names, route) {
			return true
		}
		m := retry{
			ID: retryID(w.Stream, w.Sequence), Where: inDurable, Routes: names, Durable: w.Durable, Attempts: w.Attempts, First: cli.KnownTime(w.FirstFailure),
			Last: cli.KnownTime(w.LastFailure), Due: cli.KnownTime(w.Due), Error: w.LastError, Dead: w.Dead, stream: w.Stream, sequence: w.Sequence, made: w.Made,
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
	return r.eachParked(ctx, route, f)
}

func (r *retries) eachParked(ctx context.Context, route string, f func(retry) bool) error {
	if r.stream == nil {
		return nil
	}
	return r.stream.ListParked(ctx, route, func(p ack.Parked) bool {
		m := retry{
			ID: retryID(p.Stream, p.Sequence), Where: isParked, Routes: []string{p.Route}, Durable: p.Consumer, Subject: p.Subject, Attempts: p.Attempts,
			First: cli.KnownTime(p.FirstFailure), Last: cli.KnownTime(p.LastFailure), Due: cli.KnownTime(p.Due), Error: p.LastError, stream: p.Stream, sequence: p.Sequence, parked: &p,
		}
		if p.Err != nil {
			m = retry{ID: fmt.Sprintf("(number %d of the retry stream)", p.Number), Where: isParked, Fault: p.Err.Error(), parked: &p}
		}
		return f(m)
	})
}
