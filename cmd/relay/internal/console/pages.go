package console

import (
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/internal/orders"
)

// page is a route of the console's own.
type page struct {
	method, path string
	role         Role
	open         bool // without a session
	summary      string
	serve        func(*request) (*answer, error)
}

func (p page) pattern() string {
	if p.path == "/" {
		return p.method + " /{$}"
	}
	return p.method + " " + p.path
}

// most is how many bytes its form may have.
func (p page) most() int64 {
	switch {
	case p.role == View: // also those without a session
		return maxLogin
	case p.path == "/dlq/{number}/edit":
		return maxEdit
	}
	return maxForm
}

// pages are all there are. docs/openapi.json has them, too.
func (c *Console) pages() []page {
	const get, post = http.MethodGet, http.MethodPost
	return []page{
		{get, "/login", View, true, "the page that takes a code", func(*request) (*answer, error) {
			return &answer{title: "Log in", template: "login"}, nil
		}},
		{post, "/login", View, true, "a session for a code of relay ui", c.login},
		{post, "/logout", View, false, "the end of the session", c.logout},
		{get, "/events", View, false, "server-sent events that say that something changed", c.events},

		{get, "/", View, false, "instances and routes, what is wrong first", c.overview},
		{get, "/routes/{route}", View, false, "a route, its keys that wait, its failures", c.route},
		{post, "/routes/{route}/pause", Operate, false, "pause a route or one of its keys", c.order(orders.Paused)},
		{post, "/routes/{route}/resume", Operate, false, "end a pause and every wait of a route or of one of its keys, and try now", c.order(orders.Running)},
		{post, "/routes/{route}/handover", Operate, false, "give a route with instances: one to another instance", c.handover},
		{get, "/grid", View, false, "the instances side by side, who has which route, and who vanished", c.gridPage},
		{get, "/trace", View, false, "the life of one message, and the latest outcomes of a route", c.trace},

		{get, "/dlq", View, false, "dead letters: groups by error, and a list", c.deadLetters},
		{get, "/dlq/{number}", View, false, "one dead letter", c.deadLetter},
		{get, "/dlq/plan", Operate, false, "what a replay or a discard would do", c.plan},
		{post, "/dlq/replay", Operate, false, "replay what was planned", c.replay},
		{post, "/dlq/discard", Operate, false, "discard what was planned", c.discard},
		{post, "/dlq/{number}/edit", Operate, false, "replay one dead letter with another body", c.edit},

		{get, "/jobs", View, false, "replays, and what was discarded", c.jobList},
		{get, "/jobs/{job}", View, false, "one replay: how far it is, and what failed", c.job},
		{post, "/jobs/{job}/cancel", Operate, false, "stop a replay", c.cancel},
		{post, "/jobs/{job}/resume", Operate, false, "go on with a replay that stopped", c.resume},

		{get, "/retries", View, false, "messages that wait for their retry", c.retries},
		{get, "/config", View, false, "what this instance runs with", c.settings},
	}
}

func (c *Console) login(r *request) (*answer, error) {
	secret, ok := c.sessions.login(r.PostFormValue("code"), time.Now())
	if !ok {
		if n := c.wrong.more(time.Now()); n > 0 {
			c.log.Warn("somebody tried to log in to the console with an invalid code", "remote", r.RemoteAddr, "times", n)
		}
		return nil, &httpError{http.StatusForbidden, "this code is not valid any more: a code works once, within a minute; run relay ui to get another"}
	}
	http.SetCookie(r.w, &http.Cookie{Name: cookie(r.Request), Value: secret, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode})
	return &answer{done: "logged in", next: "/"}, nil
}

func (c *Console) logout(r *request) (*answer, error) {
	c.sessions.logout(c.secret(r.Request))
	http.SetCookie(r.w, &http.Cookie{Name: cookie(r.Request), Path: "/", MaxAge: -1, HttpOnly: true, SameSite: http.SameSiteStrictMode})
	return &answer{done: "logged out", next: "/login"}, nil
}

// overview is all there is at a glance.
type overview struct {
	At        time.Time         `json:"at"`
	Instances []consumer.Status `json:"instances"`
	// LeftOut says what is wrong with answers that were not taken in.
	LeftOut []string `json:"left_out,omitempty"`
	Routes  []Route  `json:"-"`
	Nobody  string   `json:"-"`
	Wrong   int      `json:"-"` // routes that do not flow
	Keys    int      `json:"-"` // that do not flow, of routes that do
	Parked  int64    `json:"-"`
	Dead    uint64   `json:"-"`
}

// state asks how the instances are. None at all is no error here.
func (c *Console) state(r *request) (o overview, err error) {
	a, at, err := c.status.get(r.Context(), c.since())
	o = overview{At: at, Instances: a.Instances, LeftOut: a.Bad}
	if err != nil && len(a.Instances) == 0 {
		if r.Context().Err() != nil {
			return o, err
		}
		o.Nobody = err.Error()
	}
	o.Routes = c.behind().Routes(a.Instances, time.Now())
	for _, rt := range o.Routes {
		if !rt.Flows() {
			o.Wrong++
		} else {
			o.Keys += len(rt.Waiting) + rt.More
		}
	}
	for _, s := range a.Instances {
		o.Parked, o.Dead = max(o.Parked, s.Parked), max(o.Dead, s.Stored)
	}
	return o, nil
}

func (c *Console) overview(r *request) (*answer, error) {
	o, err := c.state(r)
	if err != nil {
		return nil, err
	}
	return &answer{title: "Overview", topic: "status", template: "overview", data: o}, nil
}

// routeData is a route's page.
type routeData struct {
	Route
	Policy  []Setting `json:"policy,omitempty"`
	Retries []Retry   `json:"retries"`
	More    bool      `json:"retries_more,omitempty"`
	// RetriesFault is why the retries could not be listed.
	RetriesFault string `json:"retries_fault,omitempty"`
	Instances    int    `json:"-"`
}

const shownRetries = 20

func (c *Console) route(r *request) (*answer, error) {
	o, err := c.state(r)
	if err != nil {
		return nil, err
	}
	name := r.PathValue("route")
	i := slices.IndexFunc(o.Routes, func(rt Route) bool { return rt.Name == name })
	if i < 0 {
		return nil, errNoRoute
	}
	d := routeData{Route: o.Routes[i], Instances: len(o.Instances)}
	for _, rt := range c.behind().Settings().Routes {
		if rt.Name == name {
			d.Policy = rt.Values
		}
	}
	d.Retries, d.More, err = c.behind().Retries(r.Context(), name, shownRetries)
	if err != nil {
		d.RetriesFault = err.Error()
	}
	return &answer{title: name, topic: "status", template: "route", data: d}, nil
}

// order gives an operator's order for a route or a key.
func (c *Console) order(state string) func(*request) (*answer, error) {
	return func(r *request) (*answer, error) {
		o := orders.Order{Route: r.PathValue("route"), State: state, Why: r.PostFormValue("why"), By: r.session.by, At: time.Now().UTC()}
		if r.PostForm.Has("key") {
			o.Key = []byte(r.PostFormValue("key"))
		}
		said, err := c.behind().Order(r.Context(), o)
		c.acted()
		if err != nil {
			return nil, err
		}
		return &answer{done: said, next: "/routes/" + url.PathEscape(o.Route)}, nil
	}
}

const shownAll = 200

func (c *Console) retries(r *request) (*answer, error) {
	list, more, err := c.behind().Retries(r.Context(), r.FormValue("route"), shownAll)
	if err != nil {
		return nil, err
	}
	return &answer{title: "Retries", topic: "status", template: "retries", data: struct {
		Route   string  `json:"route,omitempty"`
		Retries []Retry `json:"retries"`
		More    bool    `json:"more"`
	}{r.FormValue("route"), list, more}}, nil
}

func (c *Console) settings(*request) (*answer, error) {
	return &answer{title: "Configuration", template: "config", data: c.behind().Settings()}, nil
}
