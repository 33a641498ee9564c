package access

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/relaymq/relay/cmd/relay/internal/config"
)

func load(t *testing.T, text string) *config.Config {
	t.Helper()
	file := filepath.Join(t.TempDir(), "relay.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(config.Options{File: file})
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

const two = `
service: shop
streams: [{name: ORDERS, subjects: [orders.>]}]
routes:
  - {name: a, subjects: [orders.*.new], durable: both, handler: {discard: {}}}
  - {name: b, subjects: [orders.*.old], handler: {forward: {subject: "{1}.{2}.copy", allow: [orders.eu.>, other.*.copy]}}}
`

func TestFor(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		config, role string
		has, lacks   []string
		notes        []string
	}{
		"a service may do what its routes need": {
			config: two, role: Service,
			has: []string{
				"$JS.ACK.ORDERS.both.>", "$JS.ACK.ORDERS.b.>", "shop.due.>", "$KV.SHOP_ATTEMPTS.>", "$JS.API.STREAM.CREATE.ORDERS",
				"orders.eu.copy", // where both the template and its list lead
			},
			lacks: []string{">", "orders.*.copy", "other.*.copy", "$JS.ACK.>", "$KV.>", "$JS.API.STREAM.DELETE.ORDERS", "$JS.API.STREAM.PURGE.ORDERS"},
			notes: []string{"share _INBOX.>"},
		},
		"a domain has an API of its own": {
			config: "nats: {domain: hub}\n" + two, role: Service,
			has:   []string{"$JS.hub.API.INFO", "$JS.hub.API.$KV.SHOP_STATE.>"},
			lacks: []string{"$JS.API.INFO"},
		},
		"a stream that only the server knows is any": {
			config: "routes: [{name: a, subjects: [x.>], handler: {discard: {}}}]", role: Service,
			has: []string{"$JS.ACK.*.a.>"}, notes: []string{"route a names no stream"},
		},
		"dead letters go where the route says": {
			config: "routes: [{name: a, stream: S, subjects: [x.>], dead_letter: {prefix: broken}, handler: {discard: {}}}]", role: Operator,
			has: []string{"broken.>", "relay.dlq.>"}, lacks: []string{"x.>", "$JS.ACK.S.a.>"},
		},
		"a publisher may publish": {
			config: "nats: {inbox_prefix: _INBOX_shop}\n" + two, role: Publisher,
			has: []string{"orders.*.new", "orders.*.old"}, lacks: []string{"shop.>", "_INBOX_shop.>"},
			notes: []string{"relay pub needs --set nats.inbox_prefix=_INBOX"},
		},
		"events are for relay to publish": {
			config: "routes: [{name: a, stream: S, subjects: [relay.event.>, x.>], handler: {discard: {}}}]", role: Publisher,
			has: []string{"x.>"}, lacks: []string{"relay.event.>"},
		},
		"a viewer sees no message": {config: two, role: Viewer, has: []string{"shop.ctl.view.>"}, lacks: []string{"shop.ctl.act.>", "$JS.API.STREAM.MSG.GET.SHOP_DLQ"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := For(load(t, c.config), c.role)
			for _, s := range c.has {
				if !slices.Contains(p.Publish, s) {
					t.Errorf("may not publish to %s:\n%s", s, strings.Join(p.Publish, "\n"))
				}
			}
			for _, s := range c.lacks {
				if slices.Contains(p.Publish, s) {
					t.Errorf("may publish to %s", s)
				}
			}
			for _, n := range c.notes {
				if !strings.Contains(strings.Join(p.Notes, "\n"), n) {
					t.Errorf("notes: %q", p.Notes)
				}
			}
		})
	}
	both := For(load(t, two), Service, Publisher)
	if !slices.Contains(both.Publish, "orders.*.new") || !slices.Contains(both.Publish, "shop.due.>") {
		t.Errorf("two roles: %q", both.Publish)
	}
}
