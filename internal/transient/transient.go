// Package transient tells the errors of a server that may be back in a moment from faults that only people can mend.
package transient

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Is tells whether err says that the server, its JetStream or the leader of a stream is not there just now: trying again later
// may help, with nothing changed. A connection that was closed for good is a fault.
func Is(err error) bool {
	var missing notYet
	if errors.As(err, &missing) {
		return true
	}
	var api *jetstream.APIError
	if errors.As(err, &api) {
		return slices.Contains(codes, api.ErrorCode) || api.Code == 503 && !slices.Contains(faults, api.ErrorCode)
	}
	for _, e := range []error{
		context.DeadlineExceeded, nats.ErrTimeout, nats.ErrNoResponders, nats.ErrDisconnected, nats.ErrConnectionReconnecting,
		nats.ErrReconnectBufExceeded, nats.ErrStaleConnection, nats.ErrMaxConnectionsExceeded, jetstream.ErrNoStreamResponse,
		jetstream.ErrNoHeartbeat, nats.ErrNoServers, io.EOF, io.ErrUnexpectedEOF,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	var op *net.OpError
	if errors.As(err, &op) && (op.Op == "remote error" || op.Op == "local error") {
		return false // TLS: one side does not accept the other (crypto/tls, conn.go)
	}
	var network net.Error
	return errors.As(err, &network)
}

// Made is for the error of a step that makes what is missing: that a stream, bucket or consumer is not found means then that another instance made it
// a moment ago, and that the server which answered has not heard of it yet. [Is] is true for that.
func Made(err error) error {
	for _, e := range []error{jetstream.ErrStreamNotFound, jetstream.ErrBucketNotFound, jetstream.ErrConsumerNotFound} {
		if errors.Is(err, e) {
			return notYet{err}
		}
	}
	return err
}

// Raced tells whether a conditional write to a stream or bucket was refused because another write came first. A replicated stream has a code
// of its own for that, when the other write is proposed and not stored yet (nats-server, server/jetstream_batching.go).
func Raced(err error) bool {
	var api *jetstream.APIError
	return errors.As(err, &api) && (api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence || api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant) ||
		errors.Is(err, jetstream.ErrKeyExists) || errors.Is(err, jetstream.ErrKeyRevisionMismatch)
}

// Text is the text of an error for people. nats.go says of a publish while the connection is away that a buffer is full, and relay has it use
// none.
func Text(text string) string {
	return strings.ReplaceAll(text, nats.ErrReconnectBufExceeded.Error(), "the connection to NATS is away")
}

// Plain is err with such a text.
func Plain(err error) error {
	if !errors.Is(err, nats.ErrReconnectBufExceeded) {
		return err
	}
	return plain{err}
}

type plain struct{ error }

func (e plain) Error() string { return Text(e.error.Error()) }
func (e plain) Unwrap() error { return e.error }

// Soon is err as one of which [Is] is true.
func Soon(err error) error { return notYet{err} }

type notYet struct{ error }

func (e notYet) Unwrap() error { return e.error }

// codes of the server for what passes although their status is not 503 (nats-server v2.15.2, server/errors.json).
var codes = []jetstream.ErrorCode{
	10005, // no suitable peers for placement: a node may be away
	10009, // the cluster cannot handle the request: no leader
	10028, // insufficient memory resources
	10041, // a general error of raft
	10047, // insufficient storage resources
	10118, // stream is offline
	10119, // consumer is offline
	10194, // stream is offline, with a reason
	10195, // consumer is offline, with a reason
}

// faults have the status 503, and stay until somebody changes the server or the account.
var faults = []jetstream.ErrorCode{
	jetstream.JSErrCodeJetStreamNotEnabled,
	jetstream.JSErrCodeJetStreamNotEnabledForAccount,
	10010, // clustering is required
	10035, // account not found
	10036, // not supported in clustered mode
}

// Spans bound one try after the other of what waits for an answer. Nobody answers a request that a server of a cluster gets before a new leader of the
// stream or durable is elected, which takes 4 to 9 s after the old one died: it has to be sent again. Where the servers are slow, one of the later
// tries is long enough.
type Spans struct{ tries int }

// Next is how long the next try may take: ten times the first, then twice as long each time, up to the most.
func (s *Spans) Next(first, most time.Duration) time.Duration {
	s.tries++
	return min(first<<min(max(0, s.tries-10), 10), most)
}

// Early tells whether the next try is one of the first, of which one soon follows the other.
func (s *Spans) Early() bool { return s.tries < 10 }

// Patience is the pause before each next try: it doubles, from a tenth of a second, and is up to a half shorter at random.
type Patience struct{ wait time.Duration }

// Next is the next pause, at most that long.
func (p *Patience) Next(most time.Duration) time.Duration {
	p.wait = min(max(2*p.wait, 100*time.Millisecond), most)
	return p.wait - rand.N(p.wait/2+1)
}

// Pause waits that long, or until ctx is done.
func Pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
