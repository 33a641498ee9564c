package program

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/relaymq/relay/internal/natstest"
	"github.com/relaymq/relay/internal/webhook"
)

// The commands of docs/webhooks.md, from an empty folder and pasted into a shell at once: both messages arrive with signatures that hold, the
// second one by the new key alone. The first one was published before there was a server, and lost.
func TestDocs_webhooksCommandsWork(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	commands := docCommands(t, "webhooks.md")
	if len(commands) != 11 {
		t.Fatalf("%d commands: %q", len(commands), commands)
	}
	var script strings.Builder
	for _, c := range commands {
		script.WriteString(c.line)
	}
	ports := strings.NewReplacer(":9000", ":"+freePort(t), ":4222", ":"+freePort(t))
	said := paste(t, dir, ports.Replace(script.String())+"echo through; wait\n")
	const holds = "200  POST /hook/acme  signature holds, by v1:"
	natstest.Eventually(t, "both messages are delivered", func() bool {
		text := said.String()
		return strings.Contains(text, "through\n") && strings.Count(text, holds) == 2 && strings.Contains(text, "{\"id\":2}\n") || strings.Contains(text, "REFUSED")
	})
	text := said.String()
	for _, want := range []string{"stored in EVENTS as 1\n", "stored in EVENTS as 2\n", "    {\"id\":1}\n", "    {\"id\":2}\n"} {
		if strings.Count(text, want) != 1 {
			t.Errorf("%q was not said", want)
		}
	}
	keys, err := webhook.ReadFile(filepath.Join(dir, "hook.key"))
	if err != nil || len(keys) != 1 {
		t.Fatal(err, keys)
	}
	if strings.Contains(text, "REFUSED") {
		t.Error("a signature did not hold")
	}
}

// Keys go into files that nobody else reads, and printed keys are files of keys themselves.
func TestWebhookKeygen(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, kind := range [][]string{nil, {"--ed25519"}} {
		printed := filepath.Join(dir, "printed")
		if err := os.WriteFile(printed, []byte(must(t, dir, append([]string{"webhook", "keygen"}, kind...)...)), 0o600); err != nil {
			t.Fatal(err)
		}
		if keys, err := webhook.ReadFile(printed); err != nil || len(keys) != 1 || !keys[0].Signs() {
			t.Errorf("what keygen %v prints: %v %v", kind, keys, err)
		}
	}
	path := filepath.Join(dir, "keys")
	must(t, dir, "webhook", "keygen", "--out", path)
	old, err := webhook.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	said := must(t, dir, "webhook", "keygen", "--out", path, "--ed25519")
	both, err := webhook.ReadFile(path)
	if err != nil || len(both) != 2 || both[1].Fingerprint() != old[0].Fingerprint() || !strings.Contains(said, both[0].Public()) {
		t.Errorf("%v %v\n%s", both, err, said)
	}
	if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", fi.Mode(), err)
	}
	must(t, dir, "webhook", "keygen", "--out", path, "--retire")
	if one, err := webhook.ReadFile(path); err != nil || len(one) != 1 || one[0].Fingerprint() != both[0].Fingerprint() {
		t.Errorf("%v %v", one, err)
	}
	// What is no file of keys is not written to.
	other := filepath.Join(dir, "relay.yaml")
	if err := os.WriteFile(other, []byte("routes: []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, a := range map[string][]string{
		"line 1: is no webhook key": {"--out", other}, "no such file": {"--out", filepath.Join(dir, "none"), "--retire"}, "needs --out": {"--retire"},
	} {
		if code, _, stderr := relay(t, dir, append([]string{"webhook", "keygen"}, a...)...); code == 0 || !strings.Contains(stderr, want) {
			t.Errorf("%v: %d %s", a, code, stderr)
		}
	}
}

// What listen accepts verify accepts, and neither takes what was changed. Answers are those that were asked for.
func TestWebhookListenAndVerify(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "keys")
	must(t, dir, "webhook", "keygen", "--out", path, "--ed25519")
	keys, err := webhook.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	p := spawn(t, dir, nil, "webhook", "listen", "127.0.0.1:0", "--key", path, "--json", "--status", "418", "--retry-after", "7s", "--delay", "1ms")
	url := ""
	natstest.Eventually(t, "it listens", func() bool {
		_, after, _ := strings.Cut(p.out.String(), "listening on ")
		url, _, _ = strings.Cut(after, "\n")
		return url != ""
	})
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	request := func(signed, sent string) *http.Request {
		r, err := http.NewRequestWithContext(t.Context(), "POST", url+"/a?b", strings.NewReader(sent))
		if err != nil {
			t.Fatal(err)
		}
		timestamp, signature := webhook.Sign(keys, "id", time.Now(), []byte(signed))
		r.Header = http.Header{
			webhook.HeaderID: {"id"}, webhook.HeaderTimestamp: {timestamp}, webhook.HeaderSignature: {signature}, "Relay-Subject": {"a.b"},
		}
		return r
	}
	for n, c := range []struct {
		sent      string
		status    int
		signature string
	}{{"body", 418, "holds, by " + keys[0].Fingerprint()}, {"other", 401, "REFUSED: "}} {
		resp, err := client.Do(request("body", c.sent))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if resp.StatusCode != c.status || resp.Header.Get("Retry-After") != "7" {
			t.Errorf("%s: %d, Retry-After %q", c.sent, resp.StatusCode, resp.Header.Get("Retry-After"))
		}
		var lines []string // the first says where it listens
		natstest.Eventually(t, "it prints the request", func() bool {
			lines = strings.Split(strings.TrimSuffix(p.out.String(), "\n"), "\n")
			return len(lines) == n+2 && strings.HasSuffix(p.out.String(), "\n")
		})
		var got struct {
			Path, Subject, Body, Signature string
			Status                         int
		}
		if err := json.Unmarshal([]byte(lines[len(lines)-1]), &got); err != nil {
			t.Fatal(err)
		}
		if got.Path != "/a?b" || got.Subject != "a.b" || got.Body != c.sent || got.Status != c.status || !strings.HasPrefix(got.Signature, c.signature) {
			t.Errorf("%+v", got)
		}
		var wire bytes.Buffer
		if err := request("body", c.sent).Write(&wire); err != nil {
			t.Fatal(err)
		}
		v := spawn(t, dir, &wire, "webhook", "verify", "--key", path)
		if code := v.wait(); (code == 0) != (c.status == 418) {
			t.Errorf("verify of %s: %d %s%s", c.sent, code, v.out, v.err)
		}
	}
	v := spawn(t, dir, strings.NewReader("hello"), "webhook", "verify", "--key", path)
	if code := v.wait(); code != 1 || !strings.Contains(v.err.String(), "no HTTP/1.1 request") {
		t.Errorf("%d %s", code, v.err)
	}
	p.signal(syscall.SIGINT)
	if code := p.wait(); code != 0 {
		t.Errorf("listen ends with %d", code)
	}
}
