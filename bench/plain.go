package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"hash/maphash"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// consumers makes the durables of the turn, or finds them.
func (t *turn) consumers() ([]jetstream.Consumer, error) {
	js, err := jetstream.New(t.nc)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var all []jetstream.Consumer
	names, filters := t.durables()
	for i, name := range names {
		cfg := jetstream.ConsumerConfig{
			Durable: name, AckPolicy: jetstream.AckExplicitPolicy, MaxDeliver: -1, MaxAckPending: t.MaxAckPending,
			FilterSubjects: filters[i],
		}
		if len(cfg.FilterSubjects) == 1 {
			cfg.FilterSubject, cfg.FilterSubjects = cfg.FilterSubjects[0], nil
		}
		if t.Start > 0 {
			cfg.DeliverPolicy, cfg.OptStartSeq = jetstream.DeliverByStartSequencePolicy, t.Start
		}
		c, err := js.CreateOrUpdateConsumer(ctx, t.Stream, cfg)
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, nil
}

// consume begins to consume from all durables of the turn.
func (t *turn) consume(each func(jetstream.Msg)) (stop func(), err error) {
	all, err := t.consumers()
	if err != nil {
		return nil, err
	}
	var running []jetstream.ConsumeContext
	stop = func() {
		for _, c := range running {
			c.Stop()
		}
	}
	for _, c := range all {
		cc, err := c.Consume(each)
		if err != nil {
			stop()
			return nil, err
		}
		running = append(running, cc)
	}
	return stop, nil
}

// settle acks without a confirmation, or asks for the message again.
func (t *turn) settle(m jetstream.Msg, err error) {
	if err != nil {
		_ = m.NakWithDelay(t.Handler.Delay)
		return
	}
	_ = m.Ack()
}

// plain is the shortest program one can write.
func plain(t *turn) (func(), error) {
	handle, err := t.handle()
	if err != nil {
		return nil, err
	}
	return t.consume(func(m jetstream.Msg) { t.settle(m, handle(m.Subject(), m.Data())) })
}

// plainPool hands the messages to as many goroutines as handlers may run.
func plainPool(t *turn) (func(), error) {
	handle, err := t.handle()
	if err != nil {
		return nil, err
	}
	work := make(chan jetstream.Msg)
	for range t.Concurrency {
		go func() {
			for m := range work {
				t.settle(m, handle(m.Subject(), m.Data()))
			}
		}()
	}
	return t.consume(func(m jetstream.Msg) { work <- m })
}

// plainSharded is plainPool with one goroutine for all messages of a subject, so that these keep their order.
func plainSharded(t *turn) (func(), error) {
	handle, err := t.handle()
	if err != nil {
		return nil, err
	}
	shards := make([]chan jetstream.Msg, t.Concurrency)
	for i := range shards {
		shards[i] = make(chan jetstream.Msg, 64)
		go func() {
			for m := range shards[i] {
				t.settle(m, handle(m.Subject(), m.Data()))
			}
		}()
	}
	seed := maphash.MakeSeed()
	return t.consume(func(m jetstream.Msg) { shards[maphash.String(seed, m.Subject())%uint64(len(shards))] <- m })
}

// What relay's batches are by default: so many messages, and how long the first waits for the others.
const (
	batchSize = 100
	batchWait = 200 * time.Millisecond
)

// plainFetch is a loop, as many times as relay has batches at once: it fetches a batch, posts that as one request, and acks all of it. A batch that
// failed comes again as a whole.
func plainFetch(t *turn) (func(), error) {
	send, err := t.sender("application/x-ndjson")
	if err != nil {
		return nil, err
	}
	all, err := t.consumers()
	if err != nil {
		return nil, err
	}
	for _, c := range all {
		for range t.Concurrency / t.Batch {
			go func() {
				for {
					got, err := c.Fetch(t.Batch, jetstream.FetchMaxWait(batchWait))
					if err != nil {
						return // the connection is closed
					}
					var batch []jetstream.Msg
					for m := range got.Messages() {
						batch = append(batch, m)
					}
					if len(batch) == 0 {
						continue
					}
					body, id, err := lines(batch)
					if err == nil {
						err = send(id, body)
					}
					for _, m := range batch {
						t.settle(m, err)
					}
				}
			}()
		}
	}
	return func() {}, nil
}

// lines are the messages as relay sends them, and the id of the first.
func lines(batch []jetstream.Msg) (body []byte, id string, err error) {
	var to bytes.Buffer
	enc := json.NewEncoder(&to)
	for _, m := range batch {
		meta, err := m.Metadata()
		if err != nil {
			return nil, "", err
		}
		line := batchLine{
			ID: fmt.Sprintf("%s~%d", meta.Stream, meta.Sequence.Stream), Attempt: int(meta.NumDelivered), Subject: m.Subject(), Data: m.Data(), Stream: meta.Stream,
			Sequence: meta.Sequence.Stream, Time: meta.Timestamp,
		}
		if id == "" {
			id = line.ID
		}
		if err := enc.Encode(line); err != nil {
			return nil, "", err
		}
	}
	return to.Bytes(), id, nil
}

// batchLine is what an endpoint gets of a message.
type batchLine struct {
	ID       string    `json:"id"`
	Attempt  int       `json:"attempt"`
	Subject  string    `json:"subject"`
	Data     []byte    `json:"data_base64"`
	Stream   string    `json:"stream"`
	Sequence uint64    `json:"sequence"`
	Time     time.Time `json:"time"`
}

// unconfirmedMax bounds what plainConfirmed has sent without an answer.
const unconfirmedMax = 8192

// plainConfirmed has its acks confirmed without waiting for each: the answers come to one inbox and are matched. It sends
// nothing again, and extends no lease.
func plainConfirmed(t *turn) (func(), error) {
	handle, err := t.handle()
	if err != nil {
		return nil, err
	}
	inbox := t.nc.NewInbox() + "."
	window := make(chan struct{}, unconfirmedMax)
	var mu sync.Mutex
	sent := make(map[uint64]string)
	if _, err := t.nc.Subscribe(inbox+"*", func(m *nats.Msg) {
		n, _ := strconv.ParseUint(m.Subject[len(inbox):], 36, 64)
		mu.Lock()
		_, known := sent[n]
		delete(sent, n)
		mu.Unlock()
		if known {
			<-window
		}
	}); err != nil {
		return nil, err
	}
	ack := []byte("+ACK")
	var n uint64 // Consume calls back from one goroutine
	return t.consume(func(m jetstream.Msg) {
		if handle(m.Subject(), m.Data()) != nil {
			_ = m.NakWithDelay(t.Handler.Delay)
			return
		}
		window <- struct{}{}
		n++
		mu.Lock()
		sent[n] = m.Reply()
		mu.Unlock()
		_ = t.nc.PublishRequest(m.Reply(), inbox+strconv.FormatUint(n, 36), ack)
	})
}

// plainNak leaves all messages waiting in their durable.
func plainNak(t *turn) (func(), error) {
	return t.consume(func(m jetstream.Msg) {
		_ = m.NakWithDelay(t.Handler.Delay)
		if t.handled.Add(1) >= int64(t.Handler.Until) {
			_ = t.nc.Flush()
			t.told.Do(func() { _ = say("done") })
		}
	})
}
