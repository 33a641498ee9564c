package console

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/internal/dlq"
)

const (
	shownEntries = 50
	shownGroups  = 50
	// grouped is how many dead letters are looked at for the groups of a page.
	grouped = 20_000
)

// filterKeys are the flags of relay dlq that a query may have.
var filterKeys = []string{"route", "subject", "reason", "error", "error-match", "like", "since", "until", "attempts", "body"}

// filterOf keeps of a query what chooses dead letters.
func filterOf(q url.Values) url.Values {
	kept := url.Values{}
	for _, key := range filterKeys {
		for _, v := range q[key] {
			if v != "" {
				kept.Add(key, v)
			}
		}
	}
	return kept
}

type deadLetters struct {
	Groups  []dlq.Group `json:"groups"`
	Entries []dlq.Entry `json:"entries"`
	// Last is the highest number seen: acts on this page leave alone what comes later.
	Last  uint64 `json:"last"`
	Total uint64 `json:"stored"` // in all
	Seen  int    `json:"matching"`
	// Partial: there are more than were looked at.
	Partial bool   `json:"partial,omitempty"`
	Next    uint64 `json:"next_after,omitempty"`
	Command string `json:"command"`

	Usage  dlq.Usage  `json:"-"`
	Query  url.Values `json:"-"`
	Chosen bool       `json:"-"`
	Bad    []string   `json:"unreadable,omitempty"`
}

func (c *Console) deadLetters(r *request) (*answer, error) {
	q, bodies := filterOf(r.URL.Query()), c.mayReadBodies(r.session)
	if q.Has("body") && !bodies { // whether a body matches says what is in it
		return nil, &httpError{http.StatusForbidden, "body: bodies are hidden from sessions that may only view (admin.show_bodies); filter by another key"}
	}
	d := deadLetters{Query: q, Chosen: len(q) > 0, Groups: []dlq.Group{}, Entries: []dlq.Entry{}}
	store, err := c.behind().DeadLetters(r.Context())
	if err != nil {
		return nil, err
	}
	f, flags, err := c.behind().Filter(r.Context(), q)
	if err != nil {
		return nil, err
	}
	d.Command = command("relay", append([]string{"dlq", "ls"}, flags...)...)
	if store != nil {
		if d.Usage, err = store.Usage(r.Context()); err != nil {
			return nil, err
		}
		d.Total, d.Last = d.Usage.Entries, d.Usage.Last
		after, _ := strconv.ParseUint(r.URL.Query().Get("after"), 10, 64)
		if err := d.look(r.Context(), store, f, after); err != nil {
			return nil, err
		}
	}
	if !bodies {
		for i := range d.Entries {
			hide(&d.Entries[i])
		}
	}
	return &answer{title: "Dead letters", topic: "dlq", template: "dlq", data: d}, nil
}

// look goes through the entries once, for the groups and for the page.
func (d *deadLetters) look(ctx context.Context, store *dlq.Store, f dlq.Filter, after uint64) error {
	groups := dlq.NewGroups()
	f.Limit = grouped + 1
	for e, err := range store.List(ctx, f) {
		var bad *dlq.EntryError
		switch {
		case errors.As(err, &bad):
			if len(d.Bad) < 10 {
				d.Bad = append(d.Bad, bad.Error())
			}
			continue
		case err != nil:
			return err
		case d.Seen == grouped:
			d.Partial = true
		}
		if d.Partial {
			break
		}
		d.Seen++
		groups.Add(e)
		switch {
		case e.StoredSequence <= after:
		case len(d.Entries) < shownEntries:
			d.Entries = append(d.Entries, e)
		case d.Next == 0:
			d.Next = d.Entries[len(d.Entries)-1].StoredSequence
		}
	}
	list := groups.List()
	d.Groups = append(d.Groups, list[:min(len(list), shownGroups)]...)
	return nil
}

// hide takes out of an entry what those who may not read bodies do not see.
func hide(e *dlq.Entry) { e.Header, e.Data, e.Stack = nil, nil, nil }

// header is one of a message, as it is shown.
type header struct{ Name, Value string }

type deadLetter struct {
	Entry    dlq.Entry
	Headers  []header
	Body     body
	Editable bool
	Text     string // of the body, for the editor
	Command  string
}

func (c *Console) numbered(r *request) (*dlq.Store, dlq.Entry, error) {
	n, err := strconv.ParseUint(r.PathValue("number"), 10, 64)
	if err != nil {
		return nil, dlq.Entry{}, errNoPage
	}
	store, err := c.behind().DeadLetters(r.Context())
	if err != nil {
		return nil, dlq.Entry{}, err
	}
	if store == nil {
		return nil, dlq.Entry{}, dlq.ErrNotFound
	}
	e, err := store.Get(r.Context(), n)
	if errors.Is(err, dlq.ErrNotFound) {
		err = &httpError{http.StatusNotFound, fmt.Sprintf("there is no dead letter %d any more: it was replayed or discarded", n)}
	}
	return store, e, err
}

func (c *Console) deadLetter(r *request) (*answer, error) {
	_, e, err := c.numbered(r)
	if err != nil {
		return nil, err
	}
	d := deadLetter{Entry: e, Command: command("relay", "dlq", "show", fmt.Sprint(e.StoredSequence))}
	if !c.mayReadBodies(r.session) {
		hide(&d.Entry)
	} else {
		d.Headers, d.Body = headers(e.Header), show(e.Data)
		d.Editable, d.Text = editable(e.Data), string(e.Data)
	}
	if wantsJSON(r.Request) {
		return &answer{data: d.Entry}, nil
	}
	return &answer{title: fmt.Sprintf("Dead letter %d", e.StoredSequence), template: "letter", data: d}, nil
}

func headers(h nats.Header) (list []header) {
	for _, name := range slices.Sorted(maps.Keys(h)) {
		for _, v := range h[name] {
			list = append(list, header{name, v})
		}
	}
	return list
}

// editable tells whether a browser gives back what it was given. Forms change ends of lines, and know text only.
func editable(b []byte) bool {
	return len(b) <= maxEdited && utf8.Valid(b) && !bytes.ContainsAny(b, "\r\x00")
}

// maxEdited is the largest body that is edited in a page.
const maxEdited = 256 << 10

// planned is what an act would do.
type planned struct {
	Act     string         `json:"act"`
	Total   int            `json:"total"`
	Routes  map[string]int `json:"routes"`
	Oldest  time.Time      `json:"oldest,omitzero"`
	Newest  time.Time      `json:"newest,omitzero"`
	Last    uint64         `json:"last"`
	Stay    int            `json:"stay"`
	Reasons map[string]int `json:"stay_because,omitempty"`
	Notes   []string       `json:"notes,omitempty"`
	Command string         `json:"command"`

	Query   url.Values `json:"-"`
	Numbers []string   `json:"-"`
}

// chosen reads which dead letters an act is about: numbers, or a filter; and up to which.
func (c *Console) chosen(ctx context.Context, q url.Values) (job *dlq.Job, flags []string, err error) {
	job = &dlq.Job{}
	for _, text := range q["number"] {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil || n == 0 {
			return nil, nil, &UsageError{fmt.Errorf("%q is not the number of a dead letter", text)}
		}
		job.Numbers = append(job.Numbers, n)
		flags = append(flags, text)
	}
	if len(job.Numbers) == 0 {
		if job.Filter, flags, err = c.behind().Filter(ctx, filterOf(q)); err != nil {
			return nil, nil, err
		}
	}
	if text := q.Get("last"); text != "" {
		if job.Last, err = strconv.ParseUint(text, 10, 64); err != nil {
			return nil, nil, &UsageError{fmt.Errorf("last: %q is not a number", text)}
		}
	}
	return job, flags, nil
}

func (c *Console) plan(r *request) (*answer, error) {
	q := r.URL.Query()
	act := q.Get("act")
	if act == "" {
		act = "replay"
	}
	if act != "replay" && act != "discard" {
		return nil, &UsageError{fmt.Errorf("act: must be replay or discard (got %q)", act)}
	}
	job, flags, err := c.chosen(r.Context(), q)
	if err != nil {
		return nil, err
	}
	if act == "discard" {
		job.Kind = dlq.Discard
	}
	p, notes, err := c.behind().Plan(r.Context(), job)
	if err != nil {
		return nil, err
	}
	if job.Kind == dlq.Discard && len(flags) == 0 {
		flags = []string{"--all"}
	}
	return &answer{title: "Plan", template: "plan", data: planned{
		Act: act, Total: p.Total, Routes: p.Routes, Oldest: p.Oldest, Newest: p.Newest, Last: p.Last, Stay: p.Refused, Reasons: p.Reasons, Notes: notes,
		Command: command("relay", append([]string{"dlq", act}, flags...)...), Query: filterOf(q), Numbers: q["number"],
	}}, nil
}

// bound is an act that was planned: it must say up to which number, and how many it was shown.
func (c *Console) bound(r *request) (*dlq.Job, int, error) {
	if r.PostFormValue("last") == "" || r.PostFormValue("total") == "" {
		return nil, 0, &UsageError{errors.New("last and total are required: /dlq/plan gives them")}
	}
	total, err := strconv.Atoi(r.PostFormValue("total"))
	if err != nil {
		return nil, 0, &UsageError{errors.New("total: must be a number")}
	}
	job, _, err := c.chosen(r.Context(), r.PostForm)
	if err == nil {
		job.By = r.session.by
	}
	return job, total, err
}

// changedPlan refuses an act that would do more than was shown. Less is fine: somebody else has done a part of it.
func changedPlan(now, shown int) error {
	if now > shown {
		return &httpError{http.StatusConflict, fmt.Sprintf("%d dead letters match now, but the plan showed %d: look at the plan again", now, shown)}
	}
	return nil
}

func (c *Console) replay(r *request) (*answer, error) {
	job, total, err := c.bound(r)
	if err != nil {
		return nil, err
	}
	for name, to := range map[string]*float64{"rate": &job.Rate, "stop_after": &job.StopAfter} {
		text := strings.TrimSuffix(r.PostFormValue(name), "%")
		if text == "" {
			continue
		}
		if *to, err = strconv.ParseFloat(text, 64); err != nil || !(*to >= 0 && *to <= 1e6) || name == "stop_after" && *to > 100 {
			return nil, &UsageError{fmt.Errorf("%s: must be a number from 0 (got %q)", name, text)}
		}
	}
	job.Staged, job.Wait = r.PostForm.Has("staged"), true
	plan, _, err := c.behind().Plan(r.Context(), job)
	if err == nil {
		err = changedPlan(plan.Total, total)
	}
	if err != nil {
		return nil, err
	}
	return c.begin(r, job, nil, fmt.Sprintf("replay of %d dead letters", plan.Total))
}

func (c *Console) begin(r *request, job *dlq.Job, body []byte, what string) (*answer, error) {
	id, err := c.behind().Start(r.Context(), *job, body)
	if err != nil {
		return nil, err
	}
	c.acted()
	c.behind().Audit(r.session.by, "", what+", job "+id)
	return &answer{done: "job " + id + " runs", next: "/jobs/" + id}, nil
}

func (c *Console) discard(r *request) (*answer, error) {
	job, total, err := c.bound(r)
	if err != nil {
		return nil, err
	}
	job.Kind = dlq.Discard
	plan, _, err := c.behind().Plan(r.Context(), job)
	if err == nil {
		err = changedPlan(plan.Total, total)
	}
	if err != nil {
		return nil, err
	}
	n, err := c.behind().Discard(r.Context(), job)
	c.acted()
	if err != nil {
		return nil, fmt.Errorf("%d were discarded, then an error stopped it: %w", n, err)
	}
	return &answer{done: fmt.Sprintf("%d discarded; relay keeps for 30 days who discarded what", n), next: "/dlq"}, nil
}

// edit replays one dead letter with what the operator made of its body.
func (c *Console) edit(r *request) (*answer, error) {
	_, e, err := c.numbered(r)
	if err != nil {
		return nil, err
	}
	if !editable(e.Data) {
		return nil, &UsageError{fmt.Errorf("a browser cannot edit this body: use relay dlq replay %d --edit", e.StoredSequence)}
	}
	text := []byte(strings.ReplaceAll(r.PostFormValue("text"), "\r\n", "\n"))
	switch {
	case bytes.Equal(text, e.Data):
		return nil, &UsageError{errors.New("the body is unchanged: replay it as it is")}
	case json.Valid(e.Data) && !json.Valid(text):
		return nil, &UsageError{errors.New("the body was JSON, and is not valid JSON any more: " + jsonFault(text) + "; go back to correct it: what you wrote is still there")}
	}
	job := &dlq.Job{Numbers: []uint64{e.StoredSequence}, By: r.session.by, Edited: true, Wait: true, Last: e.StoredSequence}
	return c.begin(r, job, text, fmt.Sprintf("replay of dead letter %d with another body", e.StoredSequence))
}

func jsonFault(b []byte) string {
	var syntax *json.SyntaxError
	err := json.Unmarshal(b, new(json.RawMessage))
	if errors.As(err, &syntax) {
		return fmt.Sprintf("line %d: %v", bytes.Count(b[:min(int(syntax.Offset), len(b))], []byte{'\n'})+1, err)
	}
	return fmt.Sprint(err)
}
