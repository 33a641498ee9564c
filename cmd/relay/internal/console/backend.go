package console

import (
	"context"
	"errors"
	"net/url"
	"time"

	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/orders"
)

// Backend is what the console shows and does, by the code of the commands. Its errors are for the operator to read.
type Backend interface {
	// Status asks all instances.
	Status(ctx context.Context) (control.Answers, error)
	// Routes says of each route what it is on all instances, what is wrong first.
	Routes(instances []consumer.Status, now time.Time) []Route
	// Order pauses or resumes, and says what came of it.
	Order(ctx context.Context, order orders.Order) (string, error)
	// Retries are messages of a route (empty: of all) that wait for their retry, at most so many; more tells that there are others.
	Retries(ctx context.Context, route string, most int) (list []Retry, more bool, err error)
	// DeadLetters is nil when there have never been any.
	DeadLetters(ctx context.Context) (*dlq.Store, error)
	// Filter reads the flags of relay dlq from a query, and returns those that are set as they are written in a command.
	Filter(ctx context.Context, query url.Values) (f dlq.Filter, flags []string, err error)
	// Plan says what a replay (subject may name another target) or a discard would do.
	Plan(ctx context.Context, job *dlq.Job) (*dlq.Plan, []string, error)
	// Start begins a planned job, and returns its id when it runs. It ends with the process; then it can be resumed. A body takes
	// the place of that of the one entry; nil: none does.
	Start(ctx context.Context, job dlq.Job, body []byte) (id string, err error)
	// Resume goes on with a job that stopped.
	Resume(ctx context.Context, id, by string) error
	// Discard removes what a filter finds, up to a number, and returns how many went.
	Discard(ctx context.Context, job *dlq.Job) (int, error)
	// Jobs is nil when nobody has begun one yet.
	Jobs(ctx context.Context) (*dlq.Jobs, error)
	// Trace gathers what is stored of a message, named as relay trace takes it.
	Trace(ctx context.Context, message string) (*Life, error)
	// Archive tells whether this instance keeps what became of messages.
	Archive() bool
	// Outcomes are the latest that were kept of a route and its stream, at most so many.
	Outcomes(ctx context.Context, stream, route string, most int) (Outcomes, error)
	// Grid is what these answers, and the ledgers, say of the instances.
	Grid(ctx context.Context, answers control.Answers) Grid
	// Handover gives a route to another instance, and says what came of it.
	Handover(ctx context.Context, order control.HandoverOrder) (string, error)
	// Settings are those of this instance, without secrets.
	Settings() Settings
	// Audit tells who did what. Order, Handover and Discard do so themselves.
	Audit(by, route, text string)
}

// Route is a route on all its instances.
type Route struct {
	Name    string               `json:"route"`
	State   string               `json:"state"`
	Still   []Still              `json:"still,omitempty"`
	Run     int                  `json:"running"`
	Stuck   int                  `json:"stuck,omitempty"`
	Held    int                  `json:"held"`
	Backlog *control.Backlog     `json:"backlog,omitempty"`
	Done    uint64               `json:"acked"`
	Retried uint64               `json:"retried"`
	Dead    *int                 `json:"dead_letters,omitempty"`
	Keys    map[string]int       `json:"keys,omitempty"`
	Waiting []Key                `json:"waiting,omitempty"`
	More    int                  `json:"waiting_more,omitempty"`
	On      []On                 `json:"on"`
	First   consumer.RouteStatus `json:"-"`
	Pause   *orders.Order        `json:"pause,omitempty"`
}

// Flows tells whether it flows on all instances.
func (r Route) Flows() bool { return len(r.Still) == 0 }

// Still says of a route that does not flow since when, why, and what happens next.
type Still struct {
	State string     `json:"state"`
	Since *time.Time `json:"since,omitempty"`
	Until *time.Time `json:"until,omitempty"`
	Why   string     `json:"why,omitempty"`
	By    string     `json:"by,omitempty"`
	Next  string     `json:"next"`
	On    int        `json:"instances"`
}

// On is a route on one instance.
type On struct {
	Instance string `json:"instance"`
	consumer.RouteStatus
}

// Key is one that does not flow.
type Key struct {
	Instance string `json:"instance"`
	control.KeyStatus
}

// Retry is a message that waits for its retry.
type Retry struct {
	ID       string     `json:"id"`
	Where    string     `json:"where"`
	Routes   []string   `json:"routes"`
	Subject  string     `json:"subject,omitempty"`
	Attempts int        `json:"attempts"`
	Due      *time.Time `json:"due,omitempty"`
	Error    string     `json:"error,omitempty"`
}

// Settings are what an instance runs with.
type Settings struct {
	Version   string         `json:"version"`
	Service   string         `json:"service"`
	Instance  string         `json:"instance,omitempty"`
	File      string         `json:"file,omitempty"`
	Hash      string         `json:"hash,omitempty"`
	Overrides []string       `json:"overrides,omitempty"`
	Warnings  []string       `json:"warnings,omitempty"`
	Values    []Setting      `json:"values"`
	Routes    []RouteSetting `json:"routes"`
}

// Setting is a key and its value.
type Setting struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// RouteSetting is a route of the configuration.
type RouteSetting struct {
	Name   string    `json:"name"`
	Values []Setting `json:"values"`
}

// UsageError is the operator's mistake.
type UsageError struct{ Err error }

func (e *UsageError) Error() string { return e.Err.Error() }
func (e *UsageError) Unwrap() error { return e.Err }

// ErrConflict says that what was shown, or is needed, is not so now.
var ErrConflict = errors.New("the state has changed")

// ErrNotFound says that there is no such thing (any more).
var ErrNotFound = errors.New("not found")
