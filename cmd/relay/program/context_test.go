package program

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/relaymq/relay/internal/natstest"
)

// A context of the nats command is all that relay needs to know of the server; and an account where nobody may listen on
// _INBOX.> is one that relay works in. Not parallel: the directory of contexts is in the environment.
func TestRun_contextWithAnInboxPrefix(t *testing.T) {
	s := natstest.Start(t, natstest.WithConfig(
		`authorization {users: [{user: relay, password: secret, permissions: {subscribe: {deny: "_INBOX.>"}}}]}`))
	dir := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", dir)
	text, err := json.Marshal(map[string]string{"url": s.URL(), "user": "relay", "password": "secret", "inbox_prefix": "_INBOX_relay"})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "nats", "context"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "nats", "context", "team.json"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, "")
	w.configure(billing)
	w.hook.answers(func(request) (int, string) { return 422, "no such customer" })
	p := w.run("--context", "team")
	must(t, w.dir, "pub", "orders.eu", "{}", "--context", "team")
	natstest.Eventually(t, "dead letter", func() bool {
		return strings.Contains(must(t, w.dir, "dlq", "ls", "--context", "team"), "no such customer")
	})
	w.hook.answers(nil)
	if out := must(t, w.dir, "dlq", "replay", "--yes", "--wait", "--context", "team"); !strings.Contains(out, "1 succeeded") {
		t.Errorf("replay says %q", out)
	}
	if out := must(t, w.dir, "status", "--context", "team"); !strings.Contains(out, "billing") {
		t.Errorf("status says %q", out)
	}
	must(t, w.dir, "pause", "billing", "--context", "team")
	p.signal(syscall.SIGTERM)
	if code := p.wait(); code != 0 {
		t.Errorf("exit %d", code)
	}
}
