package console

import (
	"context"
	"net/http"
	"slices"
	"time"
)

// Life is what is known of one message, as relay trace --json prints it.
type Life struct {
	Stream    string     `json:"stream"`
	Sequence  uint64     `json:"sequence"`
	Consumer  string     `json:"consumer,omitempty"` // of the id, if one was given
	Published *time.Time `json:"published,omitempty"`
	Subject   string     `json:"subject,omitempty"`
	// Stored tells whether the message is in its stream still.
	Stored bool `json:"stored"`
	// Replaced says that the stream was made anew since: another message has the sequence, or will have it.
	Replaced bool `json:"replaced,omitempty"`
	// Gone says that there is no such stream any more.
	Gone   bool        `json:"stream_gone,omitempty"`
	Past   []Happening `json:"past"`
	Places []Place     `json:"places"`
}

// InStream says whether its stream has it.
func (l Life) InStream() string {
	switch {
	case l.Gone:
		return "its stream does not exist any more"
	case l.Replaced:
		return "its stream was created again since then, and another message has its sequence"
	case !l.Stored:
		return "it is not in its stream any more"
	}
	return "it is in its stream"
}

// Happening is something that is over.
type Happening struct {
	Time  *time.Time `json:"time,omitempty"`
	What  string     `json:"what"`
	Error string     `json:"error,omitempty"`
	// Result is what the handler returned, if the archive keeps results.
	Result string `json:"result,omitempty"`
}

// Place is where the message is, or was last seen.
type Place struct {
	Where   string     `json:"where"` // stream, durable, parked, dead, through, nowhere
	Text    string     `json:"text"`
	Durable string     `json:"durable,omitempty"`
	Route   string     `json:"route,omitempty"`
	Due     *time.Time `json:"due,omitempty"`
	Next    string     `json:"next"`
	// Number is that of the dead letter.
	Number uint64 `json:"dead_letter,omitempty"`
}

// Outcomes are what became of messages of a route, the latest first.
type Outcomes struct {
	List []Outcome `json:"list"`
	// Back is set when older ones were not looked for: the records from then on were read.
	Back *time.Time `json:"back_to,omitempty"`
}

// Outcome is what became of one message.
type Outcome struct {
	Ended    time.Time `json:"ended"`
	Message  string    `json:"message"` // as relay trace takes it
	Stream   string    `json:"stream"`
	Sequence uint64    `json:"sequence"`
	Outcome  string    `json:"outcome"`
	Attempts int       `json:"attempts"`
	Replay   int       `json:"replay,omitempty"`
	Instance string    `json:"instance"`
	Result   string    `json:"result,omitempty"`
}

type traced struct {
	Message string `json:"message,omitempty"`
	Life    *Life  `json:"life,omitempty"`
	Route   string `json:"route,omitempty"`
	// Outcomes are the latest of the route.
	Outcomes *Outcomes `json:"outcomes,omitempty"`
	// Archive tells whether this instance keeps outcomes.
	Archive bool   `json:"archive"`
	Command string `json:"command"`
}

const shownOutcomes = 50

// trace shows the life of a message, the latest outcomes of a route, or how to ask.
func (c *Console) trace(r *request) (*answer, error) {
	d := traced{Message: r.FormValue("message"), Route: r.FormValue("route"), Archive: c.behind().Archive(), Command: "relay trace ORDERS/17"}
	bodies := c.mayReadBodies(r.session)
	if d.Message != "" {
		d.Command = command("relay", "trace", d.Message)
		life, err := c.traceOne(r.Context(), d.Message)
		if err != nil {
			return nil, err
		}
		if !bodies {
			for i := range life.Past {
				life.Past[i].Result = ""
			}
		}
		d.Life = life
	}
	if d.Route != "" {
		o, err := c.state(r)
		if err != nil {
			return nil, err
		}
		i := slices.IndexFunc(o.Routes, func(rt Route) bool { return rt.Name == d.Route })
		if i < 0 {
			return nil, errNoRoute
		}
		list, err := c.behind().Outcomes(r.Context(), o.Routes[i].First.Stream, d.Route, shownOutcomes)
		if err != nil {
			return nil, err
		}
		if !bodies {
			for i := range list.List {
				list.List[i].Result = ""
			}
		}
		d.Outcomes = &list
	}
	return &answer{title: "Trace", template: "trace", data: d}, nil
}

// traceOne traces when no other trace runs: one may go through all that is parked and archived.
func (c *Console) traceOne(ctx context.Context, message string) (*Life, error) {
	ctx, cancel := context.WithTimeout(ctx, slow)
	defer cancel()
	defer context.AfterFunc(c.ctx, cancel)()
	select {
	case c.tracing <- struct{}{}:
		defer func() { <-c.tracing }()
		return c.behind().Trace(ctx, message)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

var errNoRoute = &httpError{http.StatusNotFound, "no instance that answers has a route of this name"}
