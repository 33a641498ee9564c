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

	"github.com/nats-io/nats.go"
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
	By    string    `json:"by,omitempty"`        // the operator, as he or she says: user@host
	User  string    `json:"nats_user,omitempty"` // whom NATS took the operator for
	At    time.Time `json:"at"`
	// Trial, for [Wake], lets a route that is suspended start one message first; see [supervisor.Trial].
	Trial bool `json:"trial,omitempty"`
	// Format is what Give writes there. An instance leaves orders alone whose format is newer than its own.
	Format int `json:"format"`
}

// orderFormat is the newest format that is understood. Orders of the first version say nothing, which is 0.
const orderFormat = 1

// reason is why a route or a key is paused, and by whom.
func (order *Order) reason() string {
	why := order.Why
	if why == "" {
		why = "paused by an operator"
	}
	return cut(why, maxTextLen)
}

// The states of an Order.
const (
	OrderPaused  = "paused"
	OrderRunning = "running"
)

// Orders is the bucket in which they are kept.
type Orders struct {
	kv      jetstream.KeyValue
	created time.Time
	last    uint64 // revision, when it was opened
}

// Created is when the bucket was made: revisions of another one say nothing about this one.
func (o *Orders) Created() time.Time { return o.created }

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
	status, err := kv.Status(ctx)
	if err != nil {
		return nil, fmt.Errorf("bucket %s: %w", name, err)
	}
	o := &Orders{kv: kv}
	if s, ok := status.(*jetstream.KeyValueBucketStatus); ok {
		o.created, o.last = s.StreamInfo().Created, s.StreamInfo().State.LastSeq
	}
	return o, nil
}

// Give stores an order and returns its revision; running instances follow within moments.
func (o *Orders) Give(ctx context.Context, order Order) (revision uint64, err error) {
	if !nameRule.MatchString(order.Route) {
		return 0, fmt.Errorf("%q is not the name of a route", order.Route)
	}
	order.Format = orderFormat
	value, err := json.Marshal(order)
	if err != nil {
		return 0, err
	}
	return o.kv.Put(ctx, order.bucketKey(), value)
}

// PausedKeys are the orders by which keys of a route are paused.
func (o *Orders) PausedKeys(ctx context.Context, route string) (list []Order, err error) {
	for entry, err := range kvwatch.All(ctx, o.kv, route+".*") {
		if err != nil {
			return list, err
		}
		var order Order
		if json.Unmarshal(entry.Value(), &order) == nil && order.Format <= orderFormat && order.State == OrderPaused && order.Route == route && order.Key != nil {
			list = append(list, order)
		}
	}
	return list, nil
}

// GiveToPausedKeys gives the order to each key of its route that is paused by itself, and returns the orders by which they were.
func (o *Orders) GiveToPausedKeys(ctx context.Context, order Order) (paused []Order, err error) {
	if paused, err = o.PausedKeys(ctx, order.Route); err != nil {
		return nil, err
	}
	for _, p := range paused {
		order.Key = p.Key
		if _, err := o.Give(ctx, order); err != nil {
			return nil, err
		}
	}
	return paused, nil
}

// bucketKey is the route's name, followed by a hash of the key, which may be long and hold anything.
func (order Order) bucketKey() string {
	if order.Key == nil {
		return order.Route
	}
	sum := sha256.Sum256(order.Key)
	return order.Route + "." + hex.EncodeToString(sum[:])
}

// NATSUser is whom the server takes the connection for; empty when it does not say.
func NATSUser(ctx context.Context, nc *nats.Conn) string {
	ctx, cancel := context.WithTimeout(ctx, lookPatience*5)
	defer cancel()
	m, err := nc.RequestWithContext(ctx, "$SYS.REQ.USER.INFO", nil)
	if err != nil {
		return ""
	}
	var answer struct {
		Data struct {
			User string `json:"user"`
		} `json:"data"`
	}
	if json.Unmarshal(m.Data, &answer) != nil {
		return ""
	}
	return cut(answer.Data.User, maxKeyShown)
}

// obey applies an order.
func (rt *route) obey(order Order) {
	pause, key := order.State == OrderPaused, string(order.Key)
	attrs := []any{"by", order.By, "nats_user", order.User, "at", order.At, "why", order.Why}
	if order.Key != nil {
		attrs = append(attrs, "key", key)
	}
	switch {
	case order.Key == nil && pause:
		rt.log.Warn("route is paused by an operator", attrs...)
		rt.setPaused(&order)
		rt.group.Pause()
	case order.Key == nil:
		if rt.setPaused(nil) {
			rt.log.Info("route is resumed by an operator", attrs...)
		}
		rt.group.Resume()
	case pause:
		rt.log.Warn("key is paused by an operator", attrs...)
		rt.group.SuspendKey(key, order.reason()+by(order))
	default:
		if rt.group.ResumeKey(key) {
			rt.log.Info("key is resumed by an operator", attrs...)
		}
	}
}

// by names the operator, behind a reason.
func by(order Order) string {
	if order.By == "" {
		return ""
	}
	return " (by " + cut(order.By, maxKeyShown) + ")"
}

// setPaused notes the order by which the route is paused; nil when it is not. It reports whether it was.
func (rt *route) setPaused(order *Order) (was bool) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	was = rt.paused != nil
	rt.paused = order
	return was
}
