package webhook

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/relaymq/relay/cmd/relay/internal/cli"
	"github.com/relaymq/relay/internal/webhook"
)

// listener is an endpoint for trying things out.
type listener struct {
	keys       *webhook.Keys // nil: signatures are not looked at
	status     int
	failRate   float64
	delay      time.Duration
	retryAfter time.Duration
	asJSON     bool

	mu  sync.Mutex // of out
	out io.Writer
}

func newWebhookListen() *cobra.Command {
	l := &listener{}
	var files []string
	c := &cobra.Command{
		Use: "listen [ADDRESS]", Short: "an endpoint that prints each request and whether its signature holds", Args: cli.Args(cobra.MaximumNArgs(1)),
		Long: `Listen is an endpoint for trying things out, on 127.0.0.1:9000 unless ADDRESS says where. It prints each request, and with
--key says whether its signature holds. It answers --status; 401 to a request whose signature does not hold; and 500, or 503 with
--retry-after, to as many as --fail-rate says. It ends with Ctrl-C.`,
		Example: `  relay webhook listen --key hook.key
  relay webhook listen 127.0.0.1:9001 --fail-rate 0.2 --retry-after 5s --delay 100ms`,
		RunE: func(c *cobra.Command, a []string) error {
			switch {
			case l.status < 200 || l.status > 599:
				return fmt.Errorf("%w: --status: must be 200 to 599 (got %d)", cli.ErrUsage, l.status)
			case l.failRate < 0 || l.failRate > 1:
				return fmt.Errorf("%w: --fail-rate: must be 0 to 1 (got %v)", cli.ErrUsage, l.failRate)
			case l.delay < 0:
				return fmt.Errorf("%w: --delay: must not be negative (got %v)", cli.ErrUsage, l.delay)
			case l.retryAfter < 0 || l.retryAfter%time.Second != 0:
				return fmt.Errorf("%w: --retry-after: must be whole seconds (got %v)", cli.ErrUsage, l.retryAfter)
			}
			if len(files) > 0 {
				keys, err := webhook.Open(files...)
				if err != nil {
					return err
				}
				l.keys = keys
			}
			address := "127.0.0.1:9000"
			if len(a) > 0 {
				address = a[0]
			}
			l.out = c.OutOrStdout()
			ctx, stop := signal.NotifyContext(c.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return l.serve(ctx, address)
		},
	}
	f := c.Flags()
	f.StringArrayVar(&files, "key", nil, "file of keys to verify by (whsec_…, whsk_… or whpk_…), read again when it changes; may be given more than once")
	f.IntVar(&l.status, "status", http.StatusOK, "what it answers")
	f.Float64Var(&l.failRate, "fail-rate", 0, "share of the requests that fail, 0 to 1, chosen at random")
	f.DurationVar(&l.delay, "delay", 0, "time that each answer takes")
	f.DurationVar(&l.retryAfter, "retry-after", 0, "Retry-After of every answer that is no 2xx, in whole seconds")
	f.BoolVar(&l.asJSON, "json", false, "print a line of JSON for each request")
	_ = c.MarkFlagFilename("key")
	return c
}

// serve ends with ctx.
func (l *listener) serve(ctx context.Context, address string) error {
	on, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	fmt.Fprintf(l.out, "listening on http://%s\n", on.Addr())
	s := &http.Server{Handler: l, ReadHeaderTimeout: 10 * time.Second, MaxHeaderBytes: 64 << 10, BaseContext: func(net.Listener) context.Context { return ctx }}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(on) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	patience, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if err := s.Shutdown(patience); err != nil {
		_ = s.Close()
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// received is what is said of a request.
type received struct {
	Time      time.Time `json:"time"`
	Method    string    `json:"method"`
	Path      string    `json:"path"`
	ID        string    `json:"id,omitempty"`
	Subject   string    `json:"subject,omitempty"`
	Attempt   string    `json:"attempt,omitempty"`
	Bytes     int       `json:"bytes"`
	Body      string    `json:"body"` // the beginning
	Signature string    `json:"signature"`
	Status    int       `json:"status"`
}

// shownBody is how much of a body is printed.
const shownBody = 256

func (l *listener) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	now := time.Now()
	body, err := readBody(r)
	if err != nil {
		http.Error(w, "cannot read the body", http.StatusBadRequest)
		return
	}
	got := received{
		Time: now, Method: r.Method, Path: r.URL.RequestURI(), ID: r.Header.Get("Relay-Id"), Subject: r.Header.Get("Relay-Subject"),
		Attempt: r.Header.Get("Relay-Attempt"), Bytes: len(body), Body: string(body[:min(len(body), shownBody)]), Status: l.status,
	}
	if l.failRate > 0 && rand.Float64() < l.failRate {
		got.Status = http.StatusInternalServerError
		if l.retryAfter > 0 {
			got.Status = http.StatusServiceUnavailable
		}
	}
	switch l.keys {
	case nil:
		got.Signature = "not checked"
		if r.Header.Get(webhook.HeaderSignature) == "" {
			got.Signature = "none"
		}
	default:
		if by, err := webhook.Verify(l.keys.Current(now), r.Header, body, now); err != nil {
			got.Signature, got.Status = "REFUSED: "+err.Error(), http.StatusUnauthorized
		} else {
			got.Signature = "holds, by " + by.Fingerprint()
		}
	}
	if l.delay > 0 {
		select {
		case <-time.After(l.delay):
		case <-r.Context().Done():
		}
	}
	l.say(got)
	if l.retryAfter > 0 && got.Status/100 != 2 {
		w.Header().Set("Retry-After", strconv.Itoa(int(l.retryAfter/time.Second)))
	}
	w.WriteHeader(got.Status)
}

func (l *listener) say(got received) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.asJSON {
		_ = cli.PrintLine(l.out, got)
		return
	}
	// What a stranger sent may hold anything.
	fmt.Fprintf(l.out, "%s  %d  %s %s  signature %s\n", got.Time.Format("15:04:05.000"), got.Status, got.Method, cli.Printable(got.Path), cli.Printable(got.Signature))
	if got.ID != "" {
		fmt.Fprintf(l.out, "    %s, attempt %s, id %s\n", cli.Printable(got.Subject), cli.Printable(got.Attempt), cli.Printable(got.ID))
	}
	if got.Bytes > 0 {
		more := ""
		if got.Bytes > shownBody {
			more = fmt.Sprintf(" … %d bytes", got.Bytes)
		}
		fmt.Fprintf(l.out, "    %s%s\n", cli.Printable(got.Body), more)
	}
}
