package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/url"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/relaymq/relay/internal/natstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, natstest.Leaks()...) }

// A request is answered by work that failed once, and by the reason when it cannot be done.
func TestRun(t *testing.T) {
	s := natstest.Start(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx, s.URL(), listener) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 30 * time.Second}
	for of, want := range map[string]struct {
		status int
		body   string
	}{
		"apples":  {http.StatusOK, "apples cost 18, said attempt 2\n"},
		"nothing": {http.StatusUnprocessableEntity, "dead after 1 attempt: there is no price of nothing\n"},
	} {
		r, err := c.Get("http://" + listener.Addr().String() + "/quote?of=" + url.QueryEscape(of))
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(r.Body)
		r.Body.Close()
		if r.StatusCode != want.status || string(body) != want.body {
			t.Errorf("%s: %d %q", of, r.StatusCode, body)
		}
	}
}
