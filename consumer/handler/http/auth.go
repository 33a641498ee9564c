package http

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	nethttp "net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"

	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/consumer/handler"
	"github.com/relaymq/relay/consumer/handler/internal/snippet"
)

// Auth is how requests say who sends them: Bearer, OAuth2, or not.
type Auth struct {
	// Bearer is a token. One in a file is read again when it changes, and at once when the endpoint answers 401.
	Bearer handler.Secret `koanf:"bearer"`
	// OAuth2 gets tokens by client credentials.
	OAuth2 OAuth2 `koanf:"oauth2"`
}

// OAuth2 is a client of a token endpoint, by RFC 6749, 4.4. A token is used for nine tenths of its life, and replaced once when the
// endpoint answers 401 to it.
type OAuth2 struct {
	TokenURL string `koanf:"token_url"`
	ClientID string `koanf:"client_id"`
	// ClientSecret in a file is read for each token.
	ClientSecret handler.Secret `koanf:"client_secret"`
	Scopes       []string       `koanf:"scopes"`
	Audience     string         `koanf:"audience"`
}

func (o OAuth2) set() bool {
	return o.TokenURL != "" || o.ClientID != "" || o.ClientSecret.Reveal() != ""
}

func (c Config) authFaults(to *target) (errs []error) {
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	a := c.Auth
	bearer := a.Bearer.Reveal()
	if bearer == "" && !a.OAuth2.set() {
		if len(a.OAuth2.Scopes) > 0 || a.OAuth2.Audience != "" {
			fault("auth.oauth2.token_url: is required")
		}
		return errs
	}
	if bearer != "" && a.OAuth2.set() {
		fault("auth: set either bearer or oauth2, not both")
	}
	if bearer != "" && !validToken(bearer) {
		fault("auth.bearer: is not a token: it holds white space, a control byte, or more than %d bytes", maxToken)
	}
	for name := range c.Headers {
		if strings.EqualFold(name, "Authorization") {
			fault("headers: %s is set by auth", name)
		}
	}
	if to != nil && to.user != nil {
		fault("auth: the url has user info, which is another way to authenticate")
	}
	if !a.OAuth2.set() {
		return errs
	}
	if t, err := parseTarget(a.OAuth2.TokenURL); err != nil {
		fault("auth.oauth2.token_url: %w", err)
	} else if t.fixed == nil || t.user != nil {
		fault("auth.oauth2.token_url: may hold no placeholders and no user info")
	}
	if a.OAuth2.ClientID == "" {
		fault("auth.oauth2.client_id: is required")
	}
	if a.OAuth2.ClientSecret.Reveal() == "" {
		fault("auth.oauth2.client_secret: is required")
	}
	return errs
}

// maxToken bounds a token: it is a header of every request.
const maxToken = 16 << 10

func validToken(s string) bool {
	return s != "" && len(s) <= maxToken && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r >= 0x7f })
}

// credential is what requests carry to say who sends them. It may be used by any number of goroutines.
type credential interface {
	// token returns the one to use; refused is one that the endpoint did not take, or empty. An error is the verdict.
	token(ctx context.Context, refused string) (string, error)
	// stop closes idle connections.
	stop()
}

// newCredential returns nil when the config has none.
func newCredential(cfg Config, transport *nethttp.Transport) credential {
	switch {
	case cfg.Auth.Bearer.Reveal() != "":
		b := &bearer{secret: cfg.Auth.Bearer}
		b.current.Store(new(cfg.Auth.Bearer.Reveal()))
		return b
	case cfg.Auth.OAuth2.set():
		return newTokens(cfg.Auth.OAuth2, transport)
	}
	return nil
}

// bearer is a token that somebody else renews.
type bearer struct {
	secret  handler.Secret
	current atomic.Pointer[string]

	mu   sync.Mutex // of whoever reads
	next time.Time
	said string
}

// rereadToken is how often the file is looked at.
const rereadToken = time.Second

func (b *bearer) token(_ context.Context, refused string) (string, error) {
	if b.secret.File() == "" {
		return *b.current.Load(), nil
	}
	if refused != "" {
		b.mu.Lock() // whoever was refused wants what is there now
	} else if !b.mu.TryLock() {
		return *b.current.Load(), nil
	}
	defer b.mu.Unlock()
	if now := time.Now(); refused == *b.current.Load() || now.After(b.next) {
		b.next = now.Add(rereadToken)
		s, err := b.secret.Read()
		if err == nil && !validToken(s) {
			err = fmt.Errorf("the file %q: holds no token", b.secret.File())
		}
		if err == nil {
			b.said = ""
			b.current.Store(&s)
		} else if text := err.Error(); text != b.said {
			b.said = text
			slog.Warn("cannot read a bearer token again; relay keeps using the earlier token", "err", err)
		}
	}
	return *b.current.Load(), nil
}

func (*bearer) stop() {}

// tokens are those of a token endpoint.
type tokens struct {
	cfg    OAuth2
	name   string // scheme and host
	client *nethttp.Client
	lent   atomic.Pointer[lent]

	one    chan struct{} // held by whoever asks the endpoint; guards what follows
	grant  clientcredentials.Config
	failed error     // what the last request came to; nil for a token
	asked  time.Time // when it ended
	urged  time.Time // when it was last asked because of a 401
}

// lent is a token and its life.
type lent struct {
	value   string
	renew   time.Time
	expires time.Time // zero: nobody said
}

func (l *lent) good(now time.Time) bool {
	return l != nil && (l.expires.IsZero() || now.Before(l.expires))
}

const (
	tokenTimeout = 10 * time.Second
	// tokenPause is for how long a failure of the token endpoint answers for it: it is not asked once for each message.
	tokenPause = time.Second
)

func newTokens(cfg OAuth2, transport *nethttp.Transport) *tokens {
	to, _ := parseTarget(cfg.TokenURL) // validated
	t := &tokens{cfg: cfg, name: to.scheme + "://" + to.fixed.Host, one: make(chan struct{}, 1)}
	t.client = &nethttp.Client{
		Transport: transport,
		// What is sent there is the secret.
		CheckRedirect: func(*nethttp.Request, []*nethttp.Request) error { return nethttp.ErrUseLastResponse },
	}
	t.grant = clientcredentials.Config{ClientID: cfg.ClientID, TokenURL: cfg.TokenURL, Scopes: cfg.Scopes}
	if cfg.Audience != "" {
		t.grant.EndpointParams = url.Values{"audience": {cfg.Audience}}
	}
	return t
}

func (t *tokens) stop() { t.client.CloseIdleConnections() }

func (t *tokens) token(ctx context.Context, refused string) (string, error) {
	now := time.Now()
	has := t.lent.Load()
	if has.good(now) && has.value != refused {
		if now.Before(has.renew) {
			return has.value, nil
		}
		select {
		case t.one <- struct{}{}:
		default: // somebody renews it
			return has.value, nil
		}
	} else {
		select {
		case t.one <- struct{}{}:
		case <-ctx.Done():
			return "", consumer.NotStarted(fmt.Errorf("token endpoint %s: %w", t.name, ctx.Err()))
		}
	}
	defer func() { <-t.one }()
	now = time.Now()
	has = t.lent.Load()
	if has.good(now) && has.value != refused && now.Before(has.renew) {
		return has.value, nil // somebody else was first
	}
	if has.good(now) && has.value == refused {
		if now.Sub(t.urged) < tokenPause {
			return refused, nil // a new one was not liked better
		}
		t.urged = now
	}
	if t.failed == nil || now.Sub(t.asked) >= tokenPause {
		got, err := t.ask(ctx)
		if err != nil && ctx.Err() != nil {
			return "", consumer.NotStarted(err) // nothing was learnt of the endpoint
		}
		t.failed, t.asked = err, time.Now()
		if err == nil {
			t.lent.Store(got)
			return got.value, nil
		}
	}
	if has.good(now) && has.value != refused {
		return has.value, nil // early enough to try again
	}
	return "", consumer.FailRoute(t.failed)
}

// ask asks the endpoint for a token. No error holds anything that the endpoint has said, since that may be the secret.
func (t *tokens) ask(ctx context.Context) (*lent, error) {
	fail := func(format string, args ...any) error {
		return fmt.Errorf("token endpoint "+t.name+": "+format, args...)
	}
	secret, err := t.cfg.ClientSecret.Read()
	if err != nil {
		return nil, fail("client_secret: %w", err)
	}
	t.grant.ClientSecret = secret
	// Half of what the attempt has: a token that comes too late is of no use to it.
	limit := tokenTimeout
	if deadline, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(deadline)/2)
	}
	asking, cancel := context.WithTimeout(context.WithValue(ctx, oauth2.HTTPClient, t.client), limit)
	defer cancel()
	began := time.Now()
	token, err := t.grant.Token(asking)
	var refusal *oauth2.RetrieveError
	var sent *url.Error
	switch {
	case errors.As(err, &refusal):
		text := fmt.Sprint(refusal.Response.StatusCode, " ", nethttp.StatusText(refusal.Response.StatusCode))
		if refusal.Response.StatusCode/100 == 3 {
			text += " (redirects are not followed)"
		}
		if slices.Contains(grantErrors, refusal.ErrorCode) {
			text += ", " + refusal.ErrorCode
		}
		return nil, fail("%s", text)
	case asking.Err() != nil:
		return nil, fail("no answer within %v", limit.Round(time.Millisecond))
	case errors.As(err, &sent):
		if known := ofConnection(sent); known != nil {
			return nil, fail("%s", snippet.Head([]byte(known.Error()), maxShown))
		}
		return nil, fail("gave no HTTP answer")
	case err != nil:
		return nil, fail("the answer is not a token")
	case !validToken(token.AccessToken):
		return nil, fail("the token holds bytes that a header cannot carry")
	case !strings.EqualFold(token.Type(), "Bearer"):
		return nil, fail("the token is not of the type Bearer")
	case !token.Expiry.IsZero() && !token.Expiry.After(time.Now()):
		return nil, fail("the token has already expired")
	}
	l := &lent{value: token.AccessToken, renew: began.Add(24 * time.Hour)}
	if !token.Expiry.IsZero() {
		l.expires = token.Expiry
		l.renew = began.Add(token.Expiry.Sub(began) / 10 * 9)
	}
	return l, nil
}

// ofConnection finds the part of an error that tells of a connection, which may be shown: what surrounds it has the URL. It returns nil
// for any other error, since net/http quotes an answer that it cannot read.
func ofConnection(err error) error {
	var op *net.OpError // also of the guard, and of alerts of TLS
	var dns *net.DNSError
	var certificate *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	switch {
	case errors.As(err, &op):
		return op
	case errors.As(err, &dns):
		return dns
	case errors.As(err, &certificate):
		return certificate
	case errors.As(err, &record):
		return record
	case errors.Is(err, nethttp.ErrSchemeMismatch):
		return nethttp.ErrSchemeMismatch
	case errors.Is(err, io.ErrUnexpectedEOF):
		return io.ErrUnexpectedEOF
	case errors.Is(err, io.EOF):
		return io.EOF
	}
	return nil
}

// grantErrors are those of RFC 6749, 5.2: anything else is the endpoint's own text.
var grantErrors = []string{
	"invalid_request", "invalid_client", "invalid_grant", "unauthorized_client", "unsupported_grant_type", "invalid_scope",
	"temporarily_unavailable", "server_error",
}

// without puts *** in place of a secret that an answer gives back.
func without(b []byte, secret string) []byte {
	if secret == "" {
		return b
	}
	return bytes.ReplaceAll(b, []byte(secret), []byte("***"))
}
