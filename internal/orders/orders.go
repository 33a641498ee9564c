// Package orders keeps what operators decide of routes and their keys: that they are paused. It holds on every instance and over restarts, for it is a value
// in the bucket <SERVICE>_STATE, which every instance watches. Nothing has to be running for it to be said.
package orders

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/kvwatch"
	"github.com/relaymq/relay/internal/ownstream"
)

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
	// Trial lets a route that is suspended start one message first; see supervisor.Trial.
	Trial bool `json:"trial,omitempty"`
	// Format is what Give writes there. An instance leaves orders alone whose format is newer than its own.
	Format int `json:"format"`
}

// Format is the newest format that is understood. Orders of the first version say nothing, which is 0.
const Format = 1

// The states of an Order.
const (
	Paused  = "paused"
	Running = "running"
)

// Bucket is where they are kept.
type Bucket struct {
	KV jetstream.KeyValue
	// Created is when the bucket was made: revisions of another one say nothing about this one.
	Created time.Time
	// Last is the last revision when it was opened.
	Last uint64
}

// Name of the bucket of a service.
func Name(service string) string { return strings.ToUpper(service) + "_STATE" }

var routeRule = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// Open opens the bucket of a service (empty: relay), and makes it when it is missing.
// replicas are those of one that is made; zero means 1.
func Open(ctx context.Context, js jetstream.JetStream, service string, replicas int) (*Bucket, error) {
	name := Name(cmp.Or(service, "relay"))
	kv, err := ownstream.OpenBucket(ctx, js, jetstream.KeyValueConfig{Bucket: name, Replicas: max(replicas, 1), Description: "relay: what operators paused"})
	if err != nil {
		return nil, fmt.Errorf("bucket %s: %w", name, err)
	}
	status, err := kv.Status(ctx)
	if err != nil {
		return nil, fmt.Errorf("bucket %s: %w", name, err)
	}
	o := &Bucket{KV: kv}
	if s, ok := status.(*jetstream.KeyValueBucketStatus); ok {
		o.Created, o.Last = s.StreamInfo().Created, s.StreamInfo().State.LastSeq
	}
	return o, nil
}

// Give stores an order and returns its revision; running instances follow within moments.
func (o *Bucket) Give(ctx context.Context, order Order) (revision uint64, err error) {
	if !routeRule.MatchString(order.Route) {
		return 0, fmt.Errorf("%q is not the name of a route", order.Route)
	}
	order.Format = Format
	value, err := json.Marshal(order)
	if err != nil {
		return 0, err
	}
	return o.KV.Put(ctx, order.BucketKey(), value)
}

// PausedKeys are the orders by which keys of a route are paused.
func (o *Bucket) PausedKeys(ctx context.Context, route string) (list []Order, err error) {
	for entry, err := range kvwatch.All(ctx, o.KV, route+".*") {
		if err != nil {
			return list, err
		}
		var order Order
		if json.Unmarshal(entry.Value(), &order) == nil && order.Format <= Format && order.State == Paused && order.Route == route && order.Key != nil {
			list = append(list, order)
		}
	}
	return list, nil
}

// GiveToPausedKeys gives the order to each key of its route that is paused by itself, and returns the orders by which they were.
func (o *Bucket) GiveToPausedKeys(ctx context.Context, order Order) (paused []Order, err error) {
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

// BucketKey is the key of an order in the bucket: the route's name, followed by a hash of the key, which may be long and hold anything.
func (order Order) BucketKey() string {
	if order.Key == nil {
		return order.Route
	}
	sum := sha256.Sum256(order.Key)
	return order.Route + "." + hex.EncodeToString(sum[:])
}
