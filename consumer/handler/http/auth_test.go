package http

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	nethttp "net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/consumer/handler"
	"github.com/relaymq/relay/consumer/handler/internal/handlertest"
	"github.com/relaymq/relay/internal/natstest"
	"github.com/relaymq/relay/supervisor"
)

// idp is a token endpoint and an API that takes its newest token only.
type idp struct {
	tokens, calls atomic.Int64 // requests
	current       atomic.Pointer[string]
	answer        atomic.Pointer[nethttp.HandlerFunc] // of the token endpoint, when it is not to work
	Config        Config
}

const clientSecret = "canary-secret"

func newIDP(t *testing.T) *idp {
	p := &idp{}
	issue := func(w nethttp.ResponseWriter, r *nethttp.Request) {
		n := p.tokens.Add(1)
		if f := p.answer.Load(); f != nil {
			(*f)(w, r)
			return
		}
		id, secret, _ := r.BasicAuth()
		if id != "relay" || secret != clientSecret || r.FormValue("grant_type") != "client_credentials" || r.FormValue("scope") != "a b" || r.FormValue("audience") != "hooks" {
			t.Errorf("asked by %s with %v", id, r.Form)
		}
		token := fmt.Sprintf("token-%d", n)
		p.current.Store(&token)
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"access_token":%q,"token_type":"bearer","expires_in":3600}`, token)
	}
	ids := serve(t, issue)
	api := serve(t, func(w nethttp.ResponseWriter, r *nethttp.Request) {
		p.calls.Add(1)
		if now := p.current.Load(); now == nil || r.Header.Get("Authorization") != "Bearer "+*now {
			w.WriteHeader(nethttp.StatusUnauthorized)
			fmt.Fprintf(w, "who is %s?", r.Header.Get("Authorization"))
		}
	})
	p.Config = Config{URL: api.URL, Auth: Auth{OAuth2: OAuth2{
		TokenURL: ids.URL + "/token?hidden=canary", ClientID: "relay", ClientSecret: handler.SecretText(clientSecret), Scopes: []string{"a", "b"}, Audience: "hooks",
	}}}
	return p
}

// One token serves all messages; a 401 has it renewed, once, and the message is handled in the same attempt.
func TestHandle_oauth2(t *testing.T) {
	p := newIDP(t)
	h := newHandler(t, p.Config)
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() { handlertest.Want(t, h.Handle(t.Context(), message()), handlertest.Ack) })
	}
	all.Wait()
	if n := p.tokens.Load(); n != 1 {
		t.Errorf("%d tokens for 50 messages at once", n)
	}
	p.current.Store(new("revoked"))
	handlertest.Want(t, h.Handle(t.Context(), message()), handlertest.Ack)
	if n := p.tokens.Load(); n != 2 {
		t.Errorf("%d tokens after a 401", n)
	}
	// An endpoint that takes no token at all does not have one made for each message; and what it says of the token is not shown.
	p.current.Store(new("other"))
	for range 10 {
		err := h.Handle(t.Context(), message())
		handlertest.Want(t, err, handlertest.Retry, "401 Unauthorized: who is Bearer ***?")
	}
	if n := p.tokens.Load(); n > 3 {
		t.Errorf("%d tokens", n)
	}
}

// Whatever a token endpoint does but give a token: no request goes out, no attempt is spent, the route waits with that reason, and
// nothing of the secret is in it, wherever the endpoint repeats it.
func TestHandle_oauth2Failures(t *testing.T) {
	sink := serve(t, func(nethttp.ResponseWriter, *nethttp.Request) { t.Error("the redirect was followed") })
	say := func(status int, typ, body string) nethttp.HandlerFunc {
		return func(w nethttp.ResponseWriter, _ *nethttp.Request) {
			w.Header().Set("Content-Type", typ)
			w.Header().Set("Location", sink.URL+"/?"+clientSecret)
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		}
	}
	// What net/http quotes of an answer that it cannot read, in the forms in which the endpoint got the secret.
	coded := base64.StdEncoding.EncodeToString([]byte("relay:" + clientSecret))
	raw := func(answer string) nethttp.HandlerFunc {
		return func(w nethttp.ResponseWriter, r *nethttp.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			c, _, err := nethttp.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = io.WriteString(c, answer)
			_ = c.Close()
		}
	}
	for want, answer := range map[string]nethttp.HandlerFunc{
		"gave no HTTP answer":                    raw(coded + "\r\n\r\n"),
		"gave no HTTP":                           raw("HTTP/1.1 200 OK\r\n" + coded + "\r\n\r\n"),
		"500 Internal Server Error":              say(500, "text/plain", clientSecret),
		"307 Temporary Redirect (redirects are ": say(307, "text/plain", clientSecret),
		"302 Found":                              say(302, "text/html", clientSecret),
		"401 Unauthorized, invalid_client":       say(401, "application/json", `{"error":"invalid_client","error_description":"`+clientSecret+`"}`),
		"400 Bad Request":                        say(400, "application/json", `{"error":"`+clientSecret+`"}`),
		"the answer is not a token":              say(200, "text/html", "<html>"+clientSecret),
		"not a token":                            say(200, "application/json", `{"access_token":""}`),
		"holds bytes that a header":              say(200, "application/json", `{"access_token":"a\r\nX-Evil: `+clientSecret+`"}`),
		"not of the type Bearer":                 say(200, "application/json", `{"access_token":"a","token_type":"`+clientSecret+`"}`),
		"the token has already expired":          say(200, "application/json", `{"access_token":"a","expires_in":-5}`),
		"token endpoint http://127.0.0.1:":       func(nethttp.ResponseWriter, *nethttp.Request) { panic(nethttp.ErrAbortHandler) },
	} {
		p := newIDP(t)
		p.answer.Store(&answer)
		h := newHandler(t, p.Config)
		for range 3 {
			err := h.Handle(t.Context(), message())
			handlertest.Want(t, err, handlertest.FailRoute, "token endpoint http://127.0.0.1:", want)
			if text := fmt.Sprint(err); strings.Contains(text, "canary") || strings.Contains(text, coded) {
				t.Errorf("a secret is in %v", err)
			}
		}
		if n := p.calls.Load(); n != 0 {
			t.Errorf("%s: %d requests", want, n)
		}
	}
}

// A token endpoint that does not answer holds up nothing beyond half of an attempt's time, and one that is gone nothing at all.
func TestHandle_oauth2SilentOrGone(t *testing.T) {
	p := newIDP(t)
	hang := nethttp.HandlerFunc(func(_ nethttp.ResponseWriter, r *nethttp.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	})
	p.answer.Store(&hang)
	h := newHandler(t, p.Config)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	handlertest.Want(t, h.Handle(ctx, message()), handlertest.FailRoute, "no answer within ")
	if ctx.Err() != nil {
		t.Error("all of the attempt's time was spent")
	}
	p.Config.Auth.OAuth2.TokenURL = "http://127.0.0.1:1/"
	handlertest.Want(t, newHandler(t, p.Config).Handle(t.Context(), message()), handlertest.FailRoute, "token endpoint http://127.0.0.1:1", "refused")
	p.Config.Auth.OAuth2.ClientSecret = handler.Secret{}
	path := writeFile(t, clientSecret)
	secret, err := handler.SecretFile(path)
	if err != nil {
		t.Fatal(err)
	}
	p.Config.Auth.OAuth2.ClientSecret = secret
	h = newHandler(t, p.Config)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	handlertest.Want(t, h.Handle(t.Context(), message()), handlertest.FailRoute, "client_secret: the file ")
}

// giver answers token requests without a network.
type giver struct {
	n   int
	err error
}

func (g *giver) RoundTrip(*nethttp.Request) (*nethttp.Response, error) {
	if g.n++; g.err != nil {
		return nil, g.err
	}
	body := fmt.Sprintf(`{"access_token":"token-%d","expires_in":100}`, g.n)
	return &nethttp.Response{
		StatusCode: 200, Header: nethttp.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body)),
	}, nil
}

// A token is used for nine tenths of its life. While it cannot be renewed it is used to the end.
func TestTokens_life(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &giver{}
		tokens := newTokens(OAuth2{TokenURL: "http://id/", ClientID: "x", ClientSecret: handler.SecretText("y")}, nil)
		tokens.client.Transport = g
		is := func(want string) {
			t.Helper()
			if got, _ := tokens.token(t.Context(), ""); got != want {
				t.Errorf("after %v: %q, want %q", time.Since(start(t)), got, want)
			}
		}
		is("token-1")
		time.Sleep(89 * time.Second)
		is("token-1")
		time.Sleep(2 * time.Second)
		is("token-2")
		g.err = io.ErrUnexpectedEOF
		time.Sleep(95 * time.Second)
		is("token-2")
		is("token-2")
		if g.n != 3 {
			t.Errorf("asked %d times", g.n)
		}
		time.Sleep(6 * time.Second)
		_, err := tokens.token(t.Context(), "")
		handlertest.Want(t, err, handlertest.FailRoute, "unexpected EOF")
		g.err = nil
		time.Sleep(tokenPause)
		is("token-5")
	})
}

func start(*testing.T) time.Time { return time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) } // of a bubble

// A token that somebody else renews is read again, at once after a 401.
func TestHandle_bearerRotates(t *testing.T) {
	want := atomic.Pointer[string]{}
	want.Store(new("one"))
	var asked atomic.Int64
	s := serve(t, func(w nethttp.ResponseWriter, r *nethttp.Request) {
		asked.Add(1)
		if r.Header.Get("Authorization") != "Bearer "+*want.Load() {
			w.WriteHeader(401)
			_, _ = io.WriteString(w, r.Header.Get("Authorization"))
		}
	})
	path := writeFile(t, "one\n")
	secret, err := handler.SecretFile(path)
	if err != nil {
		t.Fatal(err)
	}
	h := newHandler(t, Config{URL: s.URL, Auth: Auth{Bearer: secret}})
	handlertest.Want(t, h.Handle(t.Context(), message()), handlertest.Ack)
	want.Store(new("two"))
	handlertest.Want(t, h.Handle(t.Context(), message()), handlertest.Retry, "401 Unauthorized: Bearer ***")
	for _, text := range []string{"two", "not a token"} { // what is no token changes nothing
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		handlertest.Want(t, h.Handle(t.Context(), message()), handlertest.Ack)
	}
	if n := asked.Load(); n != 5 {
		t.Errorf("%d requests, want 5: one was refused and repeated", n)
	}
}

func TestConfig_auth(t *testing.T) {
	oauth := OAuth2{TokenURL: "https://id/", ClientID: "me", ClientSecret: handler.SecretText("canary")}
	change := func(f func(*OAuth2)) Auth { o := oauth; f(&o); return Auth{OAuth2: o} }
	for want, c := range map[string]Config{
		"auth: set either bearer or oauth2":         {URL: "https://h", Auth: Auth{Bearer: handler.SecretText("x"), OAuth2: oauth}},
		"auth.bearer: is not a token":               {URL: "https://h", Auth: Auth{Bearer: handler.SecretText("canary\nX: y")}},
		"headers: authorization is set":             {URL: "https://h", Auth: Auth{OAuth2: oauth}, Headers: map[string]string{"authorization": "canary"}},
		"auth: the url has user info":               {URL: "https://me:canary@h", Auth: Auth{OAuth2: oauth}},
		"auth.oauth2.token_url: is required":        {URL: "https://h", Auth: change(func(o *OAuth2) { o.TokenURL = "" })},
		"auth.oauth2.token_url: is required\n":      {URL: "https://h", Auth: Auth{OAuth2: OAuth2{ClientID: "x"}}},
		"auth.oauth2.token_url: may hold":           {URL: "https://h", Auth: change(func(o *OAuth2) { o.TokenURL = "https://me:canary@id" })},
		"auth.oauth2.token_url: must begin":         {URL: "https://h", Auth: change(func(o *OAuth2) { o.TokenURL = "id" })},
		"auth.oauth2.client_id: is required":        {URL: "https://h", Auth: change(func(o *OAuth2) { o.ClientID = "" })},
		"auth.oauth2.client_secret: is required":    {URL: "https://h", Auth: change(func(o *OAuth2) { o.ClientSecret = handler.Secret{} })},
		"auth.oauth2.token_url: is required: scope": {URL: "https://h", Auth: Auth{OAuth2: OAuth2{Scopes: []string{"x"}}}},
	} {
		want = strings.TrimSuffix(want, ": scope")
		if err := c.Validate(); err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "canary") {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// While the token endpoint is down the route stands still and says why, and no message has spent an attempt once it is mended.
func TestHandle_oauth2DownStopsTheRoute(t *testing.T) {
	p := newIDP(t)
	down := nethttp.HandlerFunc(func(w nethttp.ResponseWriter, _ *nethttp.Request) { w.WriteHeader(503) })
	p.answer.Store(&down)
	h := newHandler(t, p.Config)
	nc := natstest.Start(t).Conn(t)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}}); err != nil {
		t.Fatal(err)
	}
	const messages = 20
	for i := range messages {
		if _, err := js.Publish(t.Context(), fmt.Sprintf("orders.%d", i), nil); err != nil {
			t.Fatal(err)
		}
	}
	attempts := make(chan int, 1000)
	r, err := consumer.New(nc, consumer.Config{}, consumer.Route{
		Name: "hooks", Subjects: []string{"orders.*"}, Start: consumer.Start{Policy: "all"},
		Retry: consumer.Retry{MaxAttempts: 2, Backoff: supervisor.Backoff{Min: time.Millisecond, Max: time.Millisecond}},
		Handler: consumer.HandlerFunc(func(ctx context.Context, m *consumer.Msg) error {
			err := h.Handle(ctx, m)
			if err == nil {
				attempts <- m.Attempt
			}
			return err
		}),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	defer func() { cancel(); <-done }()
	for why := ""; !strings.Contains(why, "503 Service Unavailable"); {
		if ctx.Err() != nil {
			t.Fatalf("the route does not say why it waits: %q", why)
		}
		time.Sleep(5 * time.Millisecond)
		for _, rt := range r.Status().Routes {
			why = rt.Why
		}
	}
	p.answer.Store(nil)
	for range messages {
		select {
		case n := <-attempts:
			if n != 1 {
				t.Errorf("handled at attempt %d", n)
			}
		case <-ctx.Done():
			t.Fatal("not all were handled once the token endpoint was back")
		}
	}
}
