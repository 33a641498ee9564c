// Command call answers HTTP requests over a durable queue: GET /quote?of=apples publishes a message, a route of relay in the same
// program works it off, with retries, and the response is the result. A browser that goes away, and the deadline of each request, end
// the work: what has not begun never does, and what runs is cancelled.
//
// It needs a nats-server with JetStream on 127.0.0.1:4222 (nats-server -js), and makes the stream QUOTES.
//
//	go run ./examples/call &
//	curl -i 'http://127.0.0.1:8080/quote?of=apples'
//	curl -i -m 1 'http://127.0.0.1:8080/quote?of=slow'     # the work is cancelled a moment later
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/client"
	"github.com/relaymq/relay/consumer"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	listener, err := net.Listen("tcp", "127.0.0.1:8080")
	if err == nil {
		err = run(ctx, nats.DefaultURL, listener)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// run serves until ctx is done, and closes the listener.
func run(ctx context.Context, url string, listener net.Listener) error {
	defer listener.Close()
	nc, err := nats.Connect(url, nats.MaxReconnects(-1), nats.ReconnectBufSize(-1))
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	if _, err := js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{Name: "QUOTES", Subjects: []string{"quotes.>"}}); err != nil {
		return err
	}
	worker, err := consumer.New(nc, consumer.Config{}, consumer.Route{
		Name: "quotes", Subjects: []string{"quotes.>"}, Start: consumer.Start{Policy: "all"}, Handler: consumer.HandlerFunc(quote),
		// Whom relay may ask and answer: the inboxes of callers.
		Caller:   consumer.Caller{Reply: []string{"_INBOX.>"}, Interest: []string{"_INBOX.>"}},
		Interest: consumer.Interest{Every: 500 * time.Millisecond},
	})
	if err != nil {
		return err
	}
	calls, err := client.New(nc)
	if err != nil {
		return err
	}
	defer calls.Close()
	server := &http.Server{Handler: front(calls), ReadHeaderTimeout: 5 * time.Second}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	err = worker.Run(ctx)
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	_ = server.Shutdown(end)
	if e := <-served; !errors.Is(e, http.ErrServerClosed) {
		return e
	}
	return err
}

// quote is the work: it fails now and then, and takes its time.
func quote(ctx context.Context, m *consumer.Msg) error {
	what := string(m.Data)
	switch {
	case what == "nothing":
		return consumer.Dead(errors.New("there is no price of nothing"))
	case what == "slow":
		select {
		case <-time.After(time.Minute):
		case <-ctx.Done():
			log.Printf("%s: stopped: %v", m.ID, context.Cause(ctx))
			return ctx.Err()
		}
	case m.Attempt == 1:
		return errors.New("the first try always fails")
	}
	m.Reply(fmt.Appendf(nil, "%s cost %d, said attempt %d\n", what, 3*len(what), m.Attempt))
	return nil
}

// front is the service that others see.
func front(calls *client.Client) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /quote", func(w http.ResponseWriter, r *http.Request) {
		// The request's context ends when its sender goes away.
		ctx, cancel := context.WithTimeout(r.Context(), 20*time.Second)
		defer cancel()
		result, err := calls.Do(ctx, &nats.Msg{Subject: "quotes.new", Data: []byte(r.URL.Query().Get("of"))})
		switch {
		case errors.Is(err, client.ErrTimedOut), errors.Is(err, client.ErrExpired):
			http.Error(w, "no quote in time", http.StatusGatewayTimeout)
		case errors.Is(err, client.ErrDead):
			http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		case err != nil:
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		default:
			_, _ = w.Write(result.Data)
		}
	})
	return mux
}
