package console

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/relaymq/relay/internal/control"
)

// Grid is the instances side by side, as relay grid --json prints it.
type Grid struct {
	Instances []GridInstance `json:"instances"`
	Routes    []GridRoute    `json:"routes"`
	Limits    []GridLimit    `json:"limits"`
	Notes     []string       `json:"notes,omitempty"`
}

// GridInstance is an instance of the service, or one that is there no more.
type GridInstance struct {
	Instance string     `json:"instance"`
	State    string     `json:"state"` // ready, not ready, draining, stopped or vanished
	Version  string     `json:"version,omitempty"`
	Started  *time.Time `json:"started,omitempty"`
	Gone     *time.Time `json:"gone,omitempty"` // stopped and vanished: since when
	Config   string     `json:"config,omitempty"`
	// Holds and StandsBy are routes with instances: one.
	Holds    []string `json:"holds,omitempty"`
	StandsBy []string `json:"stands_by,omitempty"`
	Running  int      `json:"running"`
	Held     int      `json:"held"`
	Done     uint64   `json:"done"`
	// PerSecond is how many it has done in a second since its start, and Share its part of what all do in a second.
	PerSecond float64 `json:"per_second"`
	Share     float64 `json:"share"`
	// InHand is how many messages one that vanished had in hand, as it said last.
	InHand int `json:"in_hand,omitempty"`
}

// GridRoute is a route with instances: one, or with partitions.
type GridRoute struct {
	Route    string   `json:"route"`
	Holder   string   `json:"holder,omitempty"`
	Fence    uint64   `json:"fence,omitempty"`
	Standbys []string `json:"standbys,omitempty"`
	// Partitions are those of the instances, and Nobody those that none has; Of is how many there are.
	Partitions map[string][]int `json:"partitions,omitempty"`
	Nobody     []int            `json:"nobody,omitempty"`
	Of         int              `json:"of,omitempty"`
}

// Shared says which instance has which partitions, in words.
func (r GridRoute) Shared() string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(r.Partitions)) {
		list = append(list, name+": "+Ranges(r.Partitions[name]))
	}
	if len(r.Nobody) > 0 {
		list = append(list, "nobody: "+Ranges(r.Nobody))
	}
	return strings.Join(list, "; ")
}

// Ranges writes numbers in order as 0-3,7.
func Ranges(list []int) string {
	var b strings.Builder
	for i := 0; i < len(list); {
		j := i
		for j+1 < len(list) && list[j+1] == list[j]+1 {
			j++
		}
		if i > 0 {
			b.WriteByte(',')
		}
		if fmt.Fprint(&b, list[i]); j > i {
			fmt.Fprintf(&b, "-%d", list[j])
		}
		i = j + 1
	}
	return b.String()
}

// GridLimit is a limit of the service, and the parts that instances have.
type GridLimit struct {
	Limit       string  `json:"limit"`
	Concurrency int     `json:"concurrency,omitempty"`
	Rate        float64 `json:"rate,omitempty"` // in a second
	// Parts are of Concurrency, or of Rate when that is the only bound. RateParts are of Rate when there are both.
	Parts     map[string]float64 `json:"parts,omitempty"`
	RateParts map[string]float64 `json:"rate_parts,omitempty"`
}

// Add notes the part of an instance.
func (l *GridLimit) Add(instance string, part int, rate float64) {
	if l.Parts == nil {
		l.Parts, l.RateParts = make(map[string]float64), make(map[string]float64)
	}
	if l.Concurrency == 0 {
		l.Parts[instance] = rate
		return
	}
	l.Parts[instance] = float64(part)
	if l.Rate > 0 {
		l.RateParts[instance] = rate
	}
}

// Of says what is divided: 20, 10/s, or both.
func (l GridLimit) Of() string { return l.words(float64(l.Concurrency), l.Rate) }

// Held says what each instance has of it.
func (l GridLimit) Held() string {
	var list []string
	for _, instance := range slices.Sorted(maps.Keys(l.Parts)) {
		part, rate := l.Parts[instance], l.RateParts[instance]
		if l.Concurrency == 0 {
			rate = part
		}
		list = append(list, instance+" "+l.words(part, rate))
	}
	return strings.Join(list, ", ")
}

// words of the bounds that the limit has.
func (l GridLimit) words(places, rate float64) string {
	switch {
	case l.Rate == 0:
		return fmt.Sprintf("%g", places)
	case l.Concurrency == 0:
		return perSecond(rate)
	}
	return fmt.Sprintf("%g and %s", places, perSecond(rate))
}

func perSecond(rate float64) string {
	if rate < 1 {
		return fmt.Sprintf("%.3g/s", rate)
	}
	return strconv.FormatFloat(math.Round(rate*100)/100, 'f', -1, 64) + "/s"
}

func (c *Console) gridPage(r *request) (*answer, error) {
	g, _, err := c.grid.get(r.Context(), c.since())
	if err != nil {
		return nil, err
	}
	return &answer{title: "Grid", topic: "status", template: "grid", data: g}, nil
}

// handover gives a route with instances: one to another instance. The order is bound to the holder that was shown.
func (c *Console) handover(r *request) (*answer, error) {
	o := control.HandoverOrder{Route: r.PathValue("route"), From: r.PostFormValue("from"), To: r.PostFormValue("to"), By: r.session.by}
	if o.From == "" {
		return nil, &UsageError{errors.New("from is required: name the instance that has the route (see /grid)")}
	}
	said, err := c.behind().Handover(r.Context(), o)
	c.acted()
	if err != nil {
		return nil, err
	}
	return &answer{done: said, next: "/grid"}, nil
}
