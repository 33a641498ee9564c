package program

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/natstest"
)

// raw publishes as a publisher whose client checks nothing, and returns what the stream answered.
func (d *denying) raw(subject, header, body string) string {
	d.t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(d.s.URL(), "nats://"))
	if err != nil {
		d.t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	header = "NATS/1.0\r\n" + header + "\r\n"
	fmt.Fprintf(c, "CONNECT {\"verbose\":false,\"headers\":true,\"no_responders\":true,\"user\":\"publisher\",\"pass\":\"publisher\"}\r\nSUB _INBOX.raw 1\r\n")
	fmt.Fprintf(c, "HPUB %s _INBOX.raw %d %d\r\n%s%s\r\nPING\r\n", subject, len(header), len(header)+len(body), header, body)
	r := bufio.NewReader(c)
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			d.t.Fatalf("%s: %v", subject, err)
		}
		switch {
		case strings.HasPrefix(line, "MSG "):
			answer, _ := r.ReadString('\n')
			return strings.TrimSpace(answer)
		case strings.HasPrefix(line, "-ERR"), strings.HasPrefix(line, "HMSG"):
			return strings.TrimSpace(line)
		}
	}
}

// A delayed message that can never be moved, or never be published, stood before those of all others, for ever.
func TestPermissions_regressionDelayedMessagesThatBlockOthers(t *testing.T) {
	t.Parallel()
	soon := time.Now().UTC().Format(time.RFC3339Nano)
	for name, header := range map[string]string{
		"headers as large as they may be": "Relay-Publish-At: " + soon + "\r\nX: " + strings.Repeat("x", 65535-12-len("Relay-Publish-At: "+soon+"\r\nX: \r\n\r\n")) + "\r\n",
		"a name of a header with a space": "Relay-Publish-At: " + soon + "\r\na b: c\r\n",
		"a name with odd bytes":           "Relay-Publish-At: " + soon + "\r\n\x01\xff(): c\r\n",
		"a value with odd bytes":          "Relay-Publish-At: " + soon + "\r\na: b\rNats-Rollup: all\x00\r\n",
		"no header":                       "no header at all\r\n",
		"the year 0":                      "Relay-Publish-At: 0000-01-01T00:00:00Z\r\n",
		"before the year 0":               "Relay-Publish-At: 0000-01-01T00:00:00+14:00\r\n",
		"the year 1":                      "Relay-Publish-At: 0001-01-01T00:00:00Z\r\n",
		"the year 1600":                   "Relay-Publish-At: 1600-01-01T00:00:00Z\r\n",
		"the year 9999":                   "Relay-Publish-At: 9999-12-31T23:59:59-14:00\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDenying(t, permittedRoutes)
			d.run().ready()
			natstest.Eventually(t, "the intake", func() bool {
				_, err := d.js.Stream(t.Context(), "RELAY_LATER_IN")
				return err == nil
			})
			t.Log(d.raw("relay.later.in.evil.orders.billing.evil", header, "evil"))
			d.by("publisher", "pub", "orders.quick.x", "good", "--in", "100ms", "--id", "good")
			good := false
			for end := time.Now().Add(15 * time.Second); !good && time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
				for _, r := range d.hook.all() {
					good = good || r.body == "good"
				}
			}
			if !good {
				t.Errorf("the message of another waits: %d, and %d in the intake", left(t, d.js, "RELAY_LATER"), left(t, d.js, "RELAY_LATER_IN"))
			}
		})
	}
}

// Whoever guessed the id that relay gives a message had it taken for a duplicate, and lost it.
func TestPermissions_regressionIDsThatPublishersGuess(t *testing.T) {
	t.Parallel()
	d := newDenying(t, permittedRoutes+"schedules: [{name: nightly, subject: orders.quick.nightly, every: 3s, body: nightly}]\n")
	d.run().ready()
	nc, err := nats.Connect(d.s.URL(), nats.UserInfo("publisher", "publisher"))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	publish := func(id string) {
		m, err := nc.RequestMsg(&nats.Msg{Subject: "orders.billing.evil", Header: nats.Header{"Nats-Msg-Id": {id}}, Data: []byte("evil")}, patience)
		var ack jetstream.PubAck
		if err != nil || json.Unmarshal(m.Data, &ack) != nil || ack.Sequence == 0 {
			t.Fatalf("%+v, %v", m, err)
		}
	}
	now := time.Now().Unix()
	for n := range int64(10) {
		publish("relay.nightly@" + time.Unix((now/3+n)*3, 0).UTC().Format(time.RFC3339))
	}
	has := func(body string) func() bool {
		return func() bool {
			for _, r := range d.hook.all() {
				if r.body == body {
					return true
				}
			}
			return false
		}
	}
	natstest.Eventually(t, "the run of a schedule", has("nightly"))
	if since := time.Now().Unix() - now; since > 20 {
		t.Errorf("the first run came after %d s", since)
	}
}

// A route that permits any subject had results and questions sent to relay's own inboxes.
func TestPermissions_regressionResultsInRelaysInboxes(t *testing.T) {
	t.Parallel()
	d := newDenying(t, strings.ReplaceAll(permittedRoutes, "reply: [_INBOX.>], interest: [_INBOX.>]", "reply: [_INBOX.>, _INBOX_relay.>], interest: [_INBOX.>, _INBOX_relay.>]"))
	d.run().ready()
	heard := make(chan string, 100)
	if _, err := d.nc.Subscribe("_INBOX_relay.*.evil.>", func(m *nats.Msg) { heard <- m.Subject }); err != nil {
		t.Fatal(err)
	}
	if err := d.nc.Flush(); err != nil {
		t.Fatal(err)
	}
	for i, of := range []string{"run", "operator", "viewer"} {
		to := "_INBOX_relay." + of + ".evil.x"
		d.publish("orders.call.x", []byte("{}"), nats.Header{"Relay-Reply-To": {to}, "Relay-Interest": {to}})
		natstest.Eventually(t, "handled", func() bool { return d.hook.count() == i+1 })
	}
	settled(t, d.js, "ORDERS", "call")
	if len(heard) > 0 {
		t.Errorf("heard on %s", <-heard)
	}
}
