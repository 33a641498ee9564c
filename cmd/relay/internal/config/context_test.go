package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// contexts makes the files of the nats command.
func contexts(t *testing.T, files map[string]string) {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", dir)
	for name, text := range files {
		file := filepath.Join(dir, "nats", name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

const overContext = `
nats: {url: "nats://file", token: of-the-file, domain: file}
routes: [{name: a, subjects: [a.*], handler: discard}]
`

func TestLoad_natsContext(t *testing.T) {
	contexts(t, map[string]string{
		"context/team.json":  `{"description":"x","url":"nats://one,tls://two","user":"u","password":"canary","inbox_prefix":"_INBOX_team","jetstream_domain":"hub","color_scheme":"red"}`,
		"context/inurl.json": `{"url":"nats://u:canary@one:4222,nats://u:canary@two"}`,
		"context/nsc.json":   `{"url":"nats://one","nsc":"nsc://a/b/c"}`,
		"context/bad.json":   `canary`,
		"context.txt":        "inurl\n",
	})
	const routes = "routes: [{name: a, subjects: [a.*], handler: discard}]\n"
	got := load(t, "nats: {context: team}\n"+routes, Options{}).NATS
	if got.URL.String() != "nats://one,tls://two" || got.User.Reveal() != "u" || got.Password.Reveal() != "canary" || got.InboxPrefix != "_INBOX_team" || got.Domain != "hub" {
		t.Errorf("nats.context: %+v", got)
	}
	got = load(t, "nats: {context: team, url: \"nats://mine\", token: t}\n"+routes, Options{}).NATS
	if got.URL.String() != "nats://mine" || got.Token.Reveal() != "t" || got.User.Reveal() != "" || got.Domain != "hub" {
		t.Errorf("what the file says too: %+v", got)
	}
	got = load(t, overContext, Options{Context: "team"}).NATS
	if got.URL.String() != "nats://one,tls://two" || got.Token.Reveal() != "" || got.User.Reveal() != "u" || got.Domain != "hub" {
		t.Errorf("--context over a file: %+v", got)
	}
	got = load(t, overContext, Options{Context: "-", Set: []string{"nats.url=nats://flag"}}).NATS
	if got.URL.String() != "nats://flag" || got.User.Reveal() != "u" || got.Password.Reveal() != "canary" || got.Domain != "" {
		t.Errorf("the selected one, with --server: %+v", got)
	}
	got = load(t, overContext, Options{Context: "inurl"}).NATS
	if got.URL.String() != "nats://one:4222,nats://two" {
		t.Errorf("user and password in the url: %+v", got)
	}
	file := filepath.Join(t.TempDir(), "relay.yaml")
	if err := os.WriteFile(file, []byte(overContext), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"taem": "--context: context taem does not exist, did you mean team?", "zzzzzzzz": "there are bad, inurl, nsc, team",
		"nsc": "context nsc has nsc, which relay does not support", "bad": "bad.json: does not hold a context in JSON", "../team": "is not the name of a context",
	} {
		if _, err := Load(Options{File: file, Context: name}); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
