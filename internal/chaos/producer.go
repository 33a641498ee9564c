package chaos

import (
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/chaos/ledger"
)

// Pub is a publish that the server confirmed.
type Pub struct {
	Script  ledger.Script
	Subject string
	Stream  string
	Seq     uint64
	Sum     [32]byte // of the body
	At      time.Time
	Raw     bool // the body is no script
}

// Load is what is published.
type Load struct {
	Count int
	// Rate a second; zero is as fast as it goes.
	Rate int
	// Subject and Script of message i. Nil means t.<i mod 10> and a script that succeeds.
	Subject func(i int) string
	Script  func(i int) ledger.Script
	// Header of message i. Nil means none.
	Header func(i int) nats.Header
	// Stop ends it before Count.
	Stop <-chan struct{}
}

// window is how many publishes wait for their confirmation at once.
const window = 256

// Produce publishes and returns when everything is confirmed or was given up. What is not confirmed is unsure: it may
// appear or not, and is published again under another id, so that Count confirmed ones come about.
func (w *World) Produce(l Load) {
	w.T.Helper()
	nc, js := w.dial()
	defer nc.Close()
	type sent struct {
		pub    *Pub
		future jetstream.PubAckFuture
	}
	async, err := jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(2*window), jetstream.WithPublishAsyncTimeout(3*time.Second))
	if err != nil {
		w.T.Fatal(err)
	}
	_ = js
	began, n, confirmed := time.Now(), 0, 0
	var waiting []sent
	for confirmed < l.Count || len(waiting) > 0 {
		for len(waiting) < window && confirmed+len(waiting) < l.Count {
			if l.Rate > 0 && time.Since(began) < time.Duration(n)*time.Second/time.Duration(l.Rate) {
				if len(waiting) > 0 {
					break
				}
				time.Sleep(time.Millisecond)
				continue
			}
			if stopped(l.Stop) {
				l.Count = 0
				break
			}
			p := w.pub(l, n)
			m := &nats.Msg{Subject: p.Subject, Data: p.Script.Body()}
			if l.Header != nil {
				m.Header = l.Header(n)
			}
			n++
			future, err := async.PublishMsgAsync(m, jetstream.WithRetryAttempts(0))
			if err != nil {
				w.mu.Lock()
				w.unsure = append(w.unsure, p)
				w.mu.Unlock()
				time.Sleep(20 * time.Millisecond) // the server is away
				if stopped(l.Stop) {
					l.Count = 0
				}
				continue
			}
			waiting = append(waiting, sent{p, future})
		}
		if len(waiting) == 0 {
			continue
		}
		first := waiting[0]
		waiting = waiting[1:]
		ok := false
		select {
		case ack := <-first.future.Ok():
			first.pub.Stream, first.pub.Seq, first.pub.At, ok = ack.Stream, ack.Sequence, time.Now(), true
			confirmed++
		case <-first.future.Err():
		case <-time.After(5 * time.Second):
		}
		w.mu.Lock()
		if ok {
			w.pubs = append(w.pubs, first.pub)
		} else {
			w.unsure = append(w.unsure, first.pub)
		}
		w.mu.Unlock()
	}
	w.Note("published %d, %d unsure", confirmed, n-confirmed)
}

func stopped(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// pub makes message i.
func (w *World) pub(l Load, i int) *Pub {
	s := ledger.Script{}
	if l.Script != nil {
		s = l.Script(i)
	}
	s.ID = fmt.Sprintf("m%d", w.ids.Add(1))
	subject := fmt.Sprintf("t.%d", i%10)
	if l.Subject != nil {
		subject = l.Subject(i)
	}
	return &Pub{Script: s, Subject: subject, Sum: sha256.Sum256(s.Body())}
}

// Publish publishes one message as it is, and notes it.
func (w *World) Publish(m *nats.Msg) (*Pub, error) {
	ctx, cancel := w.ctx(5 * time.Second)
	defer cancel()
	ack, err := w.js.PublishMsg(ctx, m)
	if err != nil {
		return nil, err
	}
	s := ledger.Parse(m.Data)
	p := &Pub{Script: s, Subject: m.Subject, Stream: ack.Stream, Seq: ack.Sequence, Sum: sha256.Sum256(m.Data), At: time.Now(), Raw: s.ID == "-"}
	if ack.Duplicate {
		return p, nil // it is in the stream once
	}
	w.mu.Lock()
	w.pubs = append(w.pubs, p)
	w.mu.Unlock()
	return p, nil
}

// Pubs are the confirmed publishes so far.
func (w *World) Pubs() []*Pub {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]*Pub(nil), w.pubs...)
}
