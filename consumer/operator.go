package consumer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/kvwatch"
)

// What operators decide holds on every instance and over restarts: it is a value in the bucket <SERVICE>_STATE, which
// every instance watches. Nothing has to be running for it to be said.

// Order is what an operator said of a route, or of one of its keys.
type Order struct {
	Route string `json:"route"`
	// Key is nil for the whole route. It may hold any bytes.
	Key   []byte    `json:"key,omitempty"`
	State string    `json:"state"` // paused or running
	Why   string    `json:"why,omitempty"`
	By    string    `json:"by,omitempty"`
	At    time.Time `json:"at"`
}

// The states of an Order.
const (
	OrderPaused  = "paused"
	OrderRunning = "running"
)

// Orders is the bucket in which they are kept.
type Orders struct {
	kv jetstream.KeyValue
}

// OpenOrders opens the bucket of a service (empty: relay), and makes it when it is missing.
func OpenOrders(ctx context.Context, js jetstream.JetStream, service string, replicas int) (*Orders, error) {
	c := Config{Service: service, Replicas: replicas}.withDefaults()
	name := strings.ToUpper(c.Service) + "_STATE"
	kv, err := js.KeyValue(ctx, name)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		kv, err = js.CreateKeyValue(ctx, jetstream.KeyValueConfig{
			Bucket: name, Replicas: c.Replicas, Description: "relay: what operators paused",
		})
	}
	if err != nil {
		return nil, fmt.Errorf("bucket %s: %w", name, err)
	}
	return &Orders{kv}, nil
}

// Give stores an order and returns its revision; running instances follow within moments.
func (o *Orders) Give(ctx context.Context, order Order) (revision uint64, err error) {
	if !nameRule.MatchString(order.Route) {
		return 0, fmt.Errorf("%q is not the name of a route", order.Route)
	}
	value, err := json.Marshal(order)
	if err != nil {
		return 0, err
	}
	return o.kv.Put(ctx, order.bucketKey(), value)
}

// bucketKey is the route's name, followed by a hash of the key, which may be long and hold anything.
func (order Order) bucketKey() string {
	if order.Key == nil {
		return order.Route
	}
	sum := sha256.Sum256(order.Key)
	return order.Route + "." + hex.EncodeToString(sum[:])
}

// follow applies the orders there are, and returns; later ones are applied until ctx is done.
func (r *Relay) follow(setup, ctx context.Context) (wait func(), err error) {
	orders, err := OpenOrders(setup, r.js, r.cfg.Service, r.cfg.Replicas)
	if err != nil {
		return nil, err
	}
	watcher, err := orders.kv.WatchAll(ctx)
	if err != nil {
		return nil, fmt.Errorf("watching bucket %s: %w", orders.kv.Bucket(), err)
	}
	for {
		select {
		case <-setup.Done():
			kvwatch.Stop(watcher)
			return nil, setup.Err()
		case entry := <-watcher.Updates():
			if entry != nil {
				r.obey(entry)
				continue
			}
		}
		break
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer kvwatch.Stop(watcher)
		for {
			select {
			case <-ctx.Done():
				return
			case entry, open := <-watcher.Updates():
				if !open {
					return
				}
				if entry != nil {
					r.obey(entry)
				}
			}
		}
	}()
	return func() { <-done }, nil
}

// obey applies one order.
func (r *Relay) obey(entry jetstream.KeyValueEntry) {
	defer func() { r.obeyed.Store(entry.Revision()) }()
	var order Order
	if entry.Operation() != jetstream.KeyValuePut {
		return
	}
	if err := json.Unmarshal(entry.Value(), &order); err != nil {
		r.log.Error("an order of an operator cannot be read", "key", entry.Key(), "error", err)
		return
	}
	for _, rt := range r.routes {
		if rt.cfg.Name == order.Route {
			rt.obey(order)
		}
	}
}

func (rt *route) obey(order Order) {
	pause, key := order.State == OrderPaused, string(order.Key)
	why := order.Why
	if why == "" {
		why = "paused by an operator"
	}
	switch {
	case order.Key == nil && pause:
		rt.log.Warn("route is paused", "why", why, "by", order.By)
		rt.setPaused(why)
		rt.group.Pause()
	case order.Key == nil:
		if rt.setPaused("") {
			rt.log.Info("route is resumed", "by", order.By)
		}
		rt.group.Resume()
	case pause:
		rt.group.SuspendKey(key, why)
	default:
		if rt.group.ResumeKey(key) {
			rt.recall(key)
		}
	}
}

// setPaused notes why the route is paused; empty when it is not. It reports whether it was.
func (rt *route) setPaused(why string) (was bool) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	was = rt.paused != ""
	rt.paused = why
	return was
}
