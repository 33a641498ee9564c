package http

import (
	"context"
	"fmt"
	"io"
	nethttp "net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/relaymq/relay/consumer/handler/internal/handlertest"
	"github.com/relaymq/relay/internal/webhook"
)

func writeFile(t testing.TB, text string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// The specification's own library verifies what arrives, by either of two keys, for bodies of any form; and what a publisher says
// of signatures does not arrive.
func TestHandle_signs(t *testing.T) {
	young, old := webhook.NewSecret(), webhook.NewSecret()
	errs := make(chan error, 1)
	s := serve(t, func(_ nethttp.ResponseWriter, r *nethttp.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.Header.Get("webhook-id") != r.Header.Get("Relay-Id") || len(r.Header.Values("webhook-signature")) != 1 {
			t.Errorf("headers %v", r.Header)
		}
		for _, secret := range []string{young, old} {
			judge, err := standardwebhooks.NewWebhook(secret)
			if err == nil {
				err = judge.Verify(body, r.Header)
			}
			errs <- err
		}
	})
	h := newHandler(t, Config{
		URL: s.URL, Sign: Sign{Keys: []File{{writeFile(t, young)}, {writeFile(t, webhook.NewPrivate()+"\n"+old+"\n")}}},
		ForwardHeaders: []string{"*"},
	})
	for _, body := range []string{"", "{}", "\x00\xff\r\n.", strings.Repeat("x", 1<<20)} {
		m := handlertest.Message("orders.eu", []byte(body))
		m.Header = nats.Header{"Webhook-Signature": {"v1,AAAA"}, "webhook-id": {"mine"}}
		done := make(chan error, 1)
		go func() { done <- h.Handle(t.Context(), m) }()
		for range 2 {
			if err := <-errs; err != nil {
				t.Errorf("%.10q: %v", body, err)
			}
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestNew_signKeys(t *testing.T) {
	public, err := webhook.ParseKey(webhook.NewPrivate())
	if err != nil {
		t.Fatal(err)
	}
	for want, path := range map[string]string{
		"sign.keys[0].file: is required":         "",
		"sign.keys[0]: open /nowhere/key":        "/nowhere/key",
		"line 1: is no webhook key":              writeFile(t, "hunter2"),
		"holds a public key (whpk_…)":            writeFile(t, public.Public()),
		"a whsec_ key has 24 to 64 bytes (this ": writeFile(t, "whsec_aHVudGVyMg=="),
	} {
		_, err := New(Config{URL: "http://127.0.0.1:1", Sign: Sign{Keys: []File{{path}}}}, 1)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", want, err)
		}
	}
	_, err = New(Config{URL: "http://127.0.0.1:1", Headers: map[string]string{"WEBHOOK-Id": "x"}, Sign: Sign{Keys: []File{{writeFile(t, webhook.NewSecret())}}}}, 1)
	if err == nil || !strings.Contains(err.Error(), "WEBHOOK-Id is set by sign") {
		t.Error(err)
	}
}

// Two keys are rotated while requests go on: the sender gets the new one, then the receiver, then the sender lets the old one go. The
// receiver refuses not one request.
func TestHandle_signingKeysRotateUnderLoad(t *testing.T) {
	t.Parallel()
	first := webhook.NewSecret()
	sender, receiver := writeFile(t, first+"\n"), writeFile(t, first+"\n")
	trusted, err := webhook.Open(receiver)
	if err != nil {
		t.Fatal(err)
	}
	var handled atomic.Int64
	var signed atomic.Pointer[string] // by what the last request was
	s := serve(t, func(w nethttp.ResponseWriter, r *nethttp.Request) {
		body, _ := io.ReadAll(r.Body)
		now := time.Now()
		if _, err := webhook.Verify(trusted.Current(now), r.Header, body, now); err != nil {
			t.Errorf("after %d requests: %v", handled.Load(), err)
			w.WriteHeader(nethttp.StatusUnauthorized)
		}
		signed.Store(new(r.Header.Get("webhook-signature")))
		handled.Add(1)
	})
	h := newHandler(t, Config{URL: s.URL, Sign: Sign{Keys: []File{{sender}}}})
	ctx, cancel := context.WithCancel(t.Context())
	var load sync.WaitGroup
	var rounds [4]atomic.Int64 // requests that each has had answered
	for i := range rounds {
		load.Go(func() {
			for ctx.Err() == nil && !t.Failed() {
				handlertest.Want(t, h.Handle(t.Context(), message()), handlertest.Ack)
				rounds[i].Add(1)
				time.Sleep(time.Millisecond)
			}
		})
	}
	defer func() { cancel(); load.Wait() }()
	until := func(what string, ok func() bool) {
		t.Helper()
		for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) || t.Failed() {
				t.Fatalf("never: %s", what)
			}
		}
	}
	// Every request that goes on from here is signed by so many: those that were on their way have been answered.
	signedBy := func(n int) {
		t.Helper()
		until(fmt.Sprint(n, " sign"), func() bool { s := signed.Load(); return s != nil && len(strings.Fields(*s)) == n })
		for i := range rounds {
			before := rounds[i].Load()
			until("the others are answered", func() bool { return rounds[i].Load() > before })
		}
	}
	put := func(path string, keys ...string) {
		t.Helper()
		var list []*webhook.Key
		for _, k := range keys {
			key, err := webhook.ParseKey(k)
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, key)
		}
		if err := webhook.WriteFile(path, list); err != nil {
			t.Fatal(err)
		}
	}
	old := first
	for _, young := range []string{webhook.NewPrivate(), webhook.NewSecret()} {
		put(sender, young, old)
		signedBy(2)
		put(receiver, young)
		key, _ := webhook.ParseKey(young)
		until("the receiver has the new key", func() bool { return trusted.Current(time.Now())[0].Fingerprint() == key.Fingerprint() })
		put(sender, young)
		signedBy(1)
		old = young
	}
	before := handled.Load()
	until("requests go on", func() bool { return handled.Load() > before+10 })
}
