package console

import (
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/dlq"
)

//go:embed assets templates
var files embed.FS

// Config is what a console needs.
type Config struct {
	Service string
	// Most is the greatest role that it gives. Empty means Operate.
	Most Role
	// ShowBodies lets also those who may only view see bodies and headers of messages.
	ShowBodies bool
	// Logger may be nil.
	Logger *slog.Logger
}

// Console is an http.Handler. Create it with [New], and close it before the server that uses it is waited for. Its methods are safe for concurrent use.
type Console struct {
	cfg      Config
	log      *slog.Logger
	backend  atomic.Pointer[Backend]
	sessions *sessions
	origin   *http.CrossOriginProtection
	mux      *http.ServeMux
	changed  atomic.Int64 // when somebody last did something here, in Unix nanoseconds

	status shared[control.Answers]
	usage  shared[dlq.Usage]
	jobs   shared[[]dlq.Job]
	grid   shared[Grid]

	wrong wrongCodes

	tracing chan struct{} // holds a value while a message is traced

	streams chan struct{}   // holds a value for each open one
	ctx     context.Context // of questions, which nobody in particular asks
	end     context.CancelFunc
}

// New returns a console that says that relay is starting until Show is called.
func New(cfg Config) *Console {
	if cfg.Most == "" {
		cfg.Most = Operate
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	c := &Console{
		cfg: cfg, log: cfg.Logger, sessions: newSessions(), origin: http.NewCrossOriginProtection(), mux: http.NewServeMux(),
		streams: make(chan struct{}, maxStreams), tracing: make(chan struct{}, 1),
	}
	c.ctx, c.end = context.WithCancel(context.Background())
	c.status.ctx, c.usage.ctx, c.jobs.ctx, c.grid.ctx = c.ctx, c.ctx, c.ctx, c.ctx
	c.status.ask = func(ctx context.Context) (control.Answers, error) { return c.behind().Status(ctx) }
	c.usage.ask = func(ctx context.Context) (dlq.Usage, error) {
		store, err := c.behind().DeadLetters(ctx)
		if err != nil || store == nil {
			return dlq.Usage{}, err
		}
		return store.Usage(ctx)
	}
	c.jobs.ask = func(ctx context.Context) ([]dlq.Job, error) {
		jobs, err := c.behind().Jobs(ctx)
		if err != nil || jobs == nil {
			return nil, err
		}
		return jobs.List(ctx)
	}
	c.grid.ask = func(ctx context.Context) (Grid, error) {
		a, _, err := c.status.get(ctx, c.since())
		if err != nil && !errors.Is(err, control.ErrNobody) && len(a.Instances) == 0 {
			return Grid{}, err
		}
		return c.behind().Grid(ctx, a), nil
	}
	for _, p := range c.pages() {
		c.mux.HandleFunc(p.pattern(), func(w http.ResponseWriter, r *http.Request) { c.serve(w, r, p) })
	}
	return c
}

// Show gives the console what it shows.
func (c *Console) Show(b Backend) { c.backend.Store(&b) }

func (c *Console) behind() Backend { return *c.backend.Load() }

// Code gives a code for /login, for a minute, that is good together with the key of the seal; by is who asked. It returns an error when the console does not give the role, or when too
// many were asked for.
func (c *Console) Code(role Role, by string, seal Seal) (string, error) {
	if !c.cfg.Most.may(role) {
		return "", fmt.Errorf("the console is for viewing only (admin.ui: %s)", c.cfg.Most)
	}
	return c.sessions.code(role, by, seal, time.Now())
}

// Close ends the pages' streams and the questions under way, and waits for these. There are no others afterwards.
func (c *Console) Close() {
	c.end()
	c.status.close()
	c.usage.close()
	c.jobs.close()
	c.grid.close()
}

const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// ServeHTTP expects that the name of the host was checked.
func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Security-Policy", policy)
	w.Header().Set("Cross-Origin-Opener-Policy", "same-origin")
	w.Header().Set("Cross-Origin-Resource-Policy", "same-origin")
	if strings.HasPrefix(r.URL.Path, "/assets/") {
		serveAsset(w, r)
		return
	}
	if err := c.origin.Check(r); err != nil {
		c.fail(w, r, nil, &httpError{http.StatusForbidden, "this request came from a page of another site"})
		return
	}
	// A mux of Go redirects what it thinks was meant; nobody means such paths here.
	if strings.Contains(r.URL.Path, "//") || strings.Contains(r.URL.Path, "/.") {
		c.fail(w, r, nil, errNoPage)
		return
	}
	if _, pattern := c.mux.Handler(r); pattern == "" {
		err := errNoPage
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			if _, other := c.mux.Handler(&http.Request{Method: method, URL: r.URL, Host: r.Host}); other != "" {
				err = &httpError{http.StatusMethodNotAllowed, "method not allowed"}
			}
		}
		c.fail(w, r, nil, err)
		return
	}
	c.mux.ServeHTTP(w, r)
}

// httpError is an error that a page says in so many words.
type httpError struct {
	status int
	text   string
}

func (e *httpError) Error() string { return e.text }

var errNoPage = &httpError{http.StatusNotFound, "there is no such page"}

// request is one that is allowed.
type request struct {
	*http.Request
	session *session
	w       http.ResponseWriter
	c       *Console
}

// answer is what a page gives: one to show, or a text after an act and where to go on.
type answer struct {
	title    string
	topic    string // what it wants to hear about
	template string
	data     any
	done     string
	next     string
}

// What a form may send. All of it is in memory, and there may be as many at once as the listener has connections.
const (
	maxLogin = 1 << 10 // a code, before anybody knows who sends it
	maxForm  = 1 << 20 // an act: a filter, or dead letters that were chosen
	maxEdit  = 9 << 20 // a body to edit, and what belongs to it
)

// loginTime is how long the form of a login may take.
const loginTime = 5 * time.Second

// slow is how long a request may take that goes through many dead letters.
const slow = 2 * time.Minute

func (c *Console) serve(w http.ResponseWriter, r *http.Request, p page) {
	s := c.sessions.get(c.secret(r), time.Now())
	switch {
	case p.open:
	case s == nil:
		if r.Method == http.MethodGet && !wantsJSON(r) && p.pattern() != "GET /events" {
			http.Redirect(w, r, "/login", http.StatusSeeOther)
			return
		}
		c.fail(w, r, nil, &httpError{http.StatusUnauthorized, "no session: run relay ui to get one"})
		return
	case !s.role.may(p.role):
		c.fail(w, r, s, &httpError{http.StatusForbidden, "your session may view but not operate: get another session with relay ui --role operate"})
		return
	case c.backend.Load() == nil:
		c.fail(w, r, s, &httpError{http.StatusServiceUnavailable, "relay is starting; /readyz says what it waits for"})
		return
	}
	rc := http.NewResponseController(w)
	read := loginTime
	if !p.open { // who has no session keeps the server's bounds
		read = slow
		_ = rc.SetWriteDeadline(time.Now().Add(slow))
	}
	if r.Method == http.MethodPost {
		_ = rc.SetReadDeadline(time.Now().Add(read))
		r.Body = http.MaxBytesReader(w, r.Body, p.most())
		if err := r.ParseForm(); err != nil {
			var tooLarge *http.MaxBytesError
			status := http.StatusBadRequest
			if errors.As(err, &tooLarge) {
				status = http.StatusRequestEntityTooLarge
			}
			c.fail(w, r, s, &httpError{status, "the form cannot be read: " + err.Error()})
			return
		}
	}
	a, err := p.serve(&request{r, s, w, c})
	switch {
	case err != nil:
		c.fail(w, r, s, err)
	case a == nil: // it has answered itself
	case a.next != "" && wantsJSON(r):
		writeJSON(w, http.StatusOK, map[string]string{"done": a.done, "next": a.next})
	case a.next != "":
		if s != nil {
			s.say(a.done)
		}
		http.Redirect(w, r, a.next, http.StatusSeeOther)
	case wantsJSON(r):
		writeJSON(w, http.StatusOK, a.data)
	default:
		c.render(w, r, s, http.StatusOK, a)
	}
}

func wantsJSON(r *http.Request) bool {
	accept := r.Header.Get("Accept")
	return strings.Contains(accept, "application/json") && !strings.Contains(accept, "text/html")
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		status, b = http.StatusInternalServerError, []byte(`{"error": "cannot be written as JSON"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(b, '\n'))
}

// fail shows an error to whom it is about.
func (c *Console) fail(w http.ResponseWriter, r *http.Request, s *session, err error) {
	status := http.StatusInternalServerError
	var known *httpError
	var usage *UsageError
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &known):
		status = known.status
	case errors.As(err, &usage):
		status = http.StatusBadRequest
	case errors.As(err, &tooLarge):
		status = http.StatusRequestEntityTooLarge
	case errors.Is(err, ErrConflict):
		status = http.StatusConflict
	case errors.Is(err, ErrNotFound), errors.Is(err, dlq.ErrNotFound), errors.Is(err, dlq.ErrNoJob):
		status = http.StatusNotFound
	case errors.Is(err, control.ErrNobody), errors.Is(err, context.DeadlineExceeded), errors.Is(err, dlq.ErrNoStream), errors.Is(err, errClosed):
		status = http.StatusServiceUnavailable
	}
	if wantsJSON(r) {
		writeJSON(w, status, map[string]string{"error": err.Error()})
		return
	}
	c.render(w, r, s, status, &answer{title: http.StatusText(status), template: "error", data: err.Error()})
}

// shown is what the layout needs.
type shown struct {
	Service string
	Title   string
	Topic   string
	Path    string
	Flash   string
	Role    Role
	By      string
	Assets  string
	Now     time.Time
	Data    any
	// Operate and Bodies are what the session may do and see.
	Operate, Bodies bool
}

func (c *Console) render(w http.ResponseWriter, r *http.Request, s *session, status int, a *answer) {
	v := shown{Service: c.cfg.Service, Title: a.title, Topic: a.topic, Path: r.URL.RequestURI(), Assets: assetsHash, Now: time.Now(), Data: a.data}
	if s != nil {
		v.Role, v.By, v.Operate, v.Bodies = s.role, s.by, s.role.may(Operate), c.mayReadBodies(s)
		if r.Header.Get("X-Relay-Part") == "" { // a page that fetches itself anew does not use up what was said
			v.Flash = s.said()
		}
	}
	var b bytes.Buffer
	if err := templates()[a.template].ExecuteTemplate(&b, "layout", v); err != nil {
		c.log.Error("cannot make a page of the console", "template", a.template, "error", err)
		http.Error(w, "relay could not make this page; its log says why", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes())
}

func (c *Console) mayReadBodies(s *session) bool { return s.role.may(Operate) || c.cfg.ShowBodies }

// cookie is named for the port: browsers send the cookies of a host to all its ports.
func cookie(r *http.Request) string {
	_, port, err := net.SplitHostPort(r.Host)
	if err != nil {
		port = "80"
	}
	return "relay_" + port
}

func (c *Console) secret(r *http.Request) string {
	k, err := r.Cookie(cookie(r))
	if err != nil {
		return ""
	}
	return k.Value
}

// acted notes that somebody did something: what is shown next was asked for afterwards.
func (c *Console) acted() { c.changed.Store(time.Now().UnixNano()) }

func (c *Console) since() time.Time { return time.Unix(0, c.changed.Load()) }

func serveAsset(w http.ResponseWriter, r *http.Request) {
	name, ok := strings.CutPrefix(r.URL.Path, "/assets/"+assetsHash+"/")
	kind := map[string]string{"console.css": "text/css; charset=utf-8", "console.js": "text/javascript; charset=utf-8", "icon.svg": "image/svg+xml"}[name]
	if !ok || kind == "" || r.Method != http.MethodGet && r.Method != http.MethodHead {
		http.NotFound(w, r)
		return
	}
	f, err := files.Open("assets/" + name)
	if err != nil {
		http.NotFound(w, r)
		return
	}
	defer f.Close()
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	_, _ = io.Copy(w, f)
}
