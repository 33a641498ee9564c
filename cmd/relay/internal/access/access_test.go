package access

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/relaymq/relay/cmd/relay/internal/config"
	"github.com/relaymq/relay/internal/subject"
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
		},
		"the archive is written by the service": {
			config: "archive: {outcomes: true}\n" + two, role: Service, has: []string{"shop.archive.*", "$JS.API.STREAM.UPDATE.SHOP_ARCHIVE"},
		},
		"without an archive the service has no right to it": {
			config: "admin: {listen: \"\"}\n" + two, role: Service, lacks: []string{"shop.archive.*", "$JS.API.STREAM.INFO.SHOP_ARCHIVE"},
		},
		"an operator reads what was kept before it was turned off": {
			config: two, role: Operator, has: []string{"$JS.API.CONSUMER.CREATE.SHOP_ARCHIVE"}, lacks: []string{"shop.archive.*", "$JS.API.STREAM.PURGE.SHOP_ARCHIVE"},
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
			notes: []string{"publishers share _INBOX.>", "--user NAME"},
		},
		"events are for relay to publish": {
			config: "routes: [{name: a, stream: S, subjects: [relay.event.>, x.>], handler: {discard: {}}}]", role: Publisher,
			has: []string{"x.>"}, lacks: []string{"relay.event.>"},
		},
		"a viewer sees no message": {config: two, role: Viewer, has: []string{"shop.ctl.view.>"}, lacks: []string{"shop.ctl.act.>", "$JS.API.STREAM.MSG.GET.SHOP_DLQ"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := For(load(t, c.config), "", c.role)
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
	both := For(load(t, two), "", Service, Publisher)
	if !slices.Contains(both.Publish, "orders.*.new") || !slices.Contains(both.Publish, "shop.due.>") {
		t.Errorf("two roles: %q", both.Publish)
	}
}

// Nobody but a service reads the answers to anybody else: what instances pull, codes for the console. All roles shared one inbox.
func TestFor_regressionInboxesAreApart(t *testing.T) {
	t.Parallel()
	for _, prefix := range []string{"", "_INBOX_x", "team.inbox"} {
		cfg := load(t, "nats: {inbox_prefix: '"+prefix+"'}\n"+two)
		lists := map[string][]string{"instances": {cfg.ServiceInbox() + ".>"}}
		for _, role := range []string{Operator, Viewer, Publisher} {
			lists[role] = For(cfg, "", role).Subscribe
			for _, user := range []string{"ann", "bob", "a.b", "service", "run", "*", "{{name()}}"} {
				lists[role+" "+user] = For(cfg, user, role).Subscribe
			}
		}
		for a, have := range lists {
			for b, others := range lists {
				roleA, userA, _ := strings.Cut(a, " ")
				roleB, userB, _ := strings.Cut(b, " ")
				above := roleA == Operator && roleB == Viewer || roleA == Viewer && roleB == Operator // operators are viewers, too
				switch {
				case userA == userB && userA != "": // one user in two roles
					continue
				case (roleA == roleB || above) && (userA == "" || userB == ""): // a list for all users of a role
					continue
				}
				for _, s := range have {
					if s == "_INBOX.>" {
						if roleA != Publisher {
							t.Errorf("%s may listen on %s", a, s)
						}
						continue
					}
					if strings.HasPrefix(s, "relay.") || strings.HasPrefix(s, "shop.") {
						continue // events
					}
					for _, o := range others {
						if subject.Overlaps(s, o) {
							t.Errorf("%s may listen on %s, and %s on %s", a, s, b, o)
						}
					}
				}
			}
		}
	}
}
