package config

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/relaymq/relay/consumer/handler"
)

const canary = "c4n4ry"

func secretOf(s string) Secret { return handler.SecretText(s) }

func TestSecret_showsNowhere(t *testing.T) {
	cfg := defaults()
	cfg.NATS.User, cfg.NATS.Password, cfg.NATS.Token = secretOf(canary), secretOf(canary), secretOf(canary)
	s := &cfg.NATS.Token
	var out bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%d", "%x", "%X", "%t", "%f", "%T", "%p", "%10.3v", "%U"} {
		fmt.Fprintf(&out, verb+verb+verb+verb, s, *s, cfg, &cfg)
	}
	fmt.Fprint(&out, cfg, s.String(), s.GoString(), fmt.Errorf("%w: %v", errors.New("x"), *s))
	for _, h := range []slog.Handler{
		slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}),
		slog.NewJSONHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}),
	} {
		slog.New(h).Debug("config", "secret", *s, "pointer", s, "all", cfg)
	}
	for name, marshal := range map[string]func(any) ([]byte, error){"json": json.Marshal, "yaml": yaml.Marshal, "xml": xml.Marshal} {
		data, err := marshal(cfg.NATS)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if !bytes.Contains(data, []byte("***")) {
			t.Errorf("%s has no %s: %s", name, "***", data)
		}
		out.Write(data)
	}
	func() {
		defer func() { fmt.Fprint(&out, recover()) }()
		panic(*s)
	}()
	if strings.Contains(out.String(), canary) || strings.Contains(out.String(), fmt.Sprintf("%x", canary)) {
		t.Errorf("the secret shows in:\n%s", out.String())
	}
	if s.Reveal() != canary {
		t.Errorf("Reveal: %q", s.Reveal())
	}
}

func ExampleSecret() {
	var s Secret
	_ = s.UnmarshalText([]byte("hunter2"))
	fmt.Println(s, len(s.Reveal()))
	// Output: *** 7
}

// Every value that a layer can set is put where it is of the wrong type, or in a key that is refused for another reason.
func TestLoad_faultsRepeatNoSecret(t *testing.T) {
	for _, text := range []string{
		"nats: {token: [c4n4ry]}",
		"nats: {token: {files: c4n4ry}}",
		"nats: {password: c4n4ry}",
		"nats: {url: 'nats://u:c4n4ry@h'}",
		"nats: {url: 'nats://c4n4ry@h:x'}",
		"nats: {url: x, user: c4n4ry, password: c4n4ry, token: c4n4ry}",
		"routes: [{name: a, subjects: [a], handler: {http: {url: 'http://u:c4n4ry@[', headers: {A: [c4n4ry]}}}}]",
		"routes: [{name: a, subjects: [a], handler: {exec: {command: [], env: {A: {b: c4n4ry}, 'x y': c4n4ry}}}}]",
		"nats: {token: c4n4ry\nservice",
	} {
		_, err := newCollector("relay.yaml").load([]byte(text), Options{
			Env: []string{"RELAY_NATS__TOKEN__X=c4n4ry"},
			Set: []string{"nats.token.x=c4n4ry", "c4n4ry"},
		})
		if err == nil || strings.Contains(err.Error(), canary) {
			t.Errorf("%s:\n%v", text, err)
		}
	}
}
