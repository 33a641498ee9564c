package limits

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/limit"
)

// maxWaiting is how many values of a limit a status lists.
const maxWaiting = 20

// Status is what people are told of the limits.
func (s *Set) Status() (list []control.LimitStatus) {
	limits := s.Now()
	for _, in := range s.book.Status() {
		l, named := limits[in.Name]
		if l = l.WithDefaults(); !named {
			l.Scope = ScopeInstance // the rate of a route
		}
		told := control.LimitStatus{
			Name: in.Name, Concurrency: in.Bounds.Places, Rate: in.Bounds.Rate, Burst: in.Bounds.Burst, Per: l.Per, Scope: l.Scope,
			Used: in.Used, Holders: in.Holders, Closed: control.Cut(in.Closed, control.MaxText),
		}
		if l.divided() {
			if told.Part, told.Others = in.Bounds.Places, control.Cut(in.Note, control.MaxText); in.Closed == "" {
				told.PartRate = in.Bounds.Rate
			}
			told.Concurrency, told.Rate, told.Burst = l.Concurrency, l.Rate.PerSecond(), l.Burst
		}
		if !in.Until.IsZero() {
			told.Left, told.Until, told.Why = &in.Left, &in.Until, control.Cut(in.Why, control.MaxText)
		}
		for _, w := range in.Waiting {
			if len(told.Waiting) == maxWaiting {
				told.WaitingMore++
				continue
			}
			told.Waiting = append(told.Waiting, control.LimitWaiting{Value: control.Cut(w.Value, control.MaxKey), Used: w.Used, Since: w.Since, Routes: w.Waiting})
		}
		list = append(list, told)
	}
	return list
}

// Describe says what a limit allows, and who holds how much of it.
func (s *Set) Describe(name string) string {
	in := s.book.Get(name)
	if in == nil {
		return "limit " + name
	}
	return describe(in.Status())
}

func describe(s limit.Status) string {
	if s.Note == "" {
		return describeHere(s)
	}
	return describeHere(s) + "; " + s.Note
}

func describeHere(s limit.Status) string {
	text := "limit " + s.Name
	switch {
	case s.Closed != "":
		return text + ": " + s.Closed
	case !s.Until.IsZero() && s.Left == 0:
		return fmt.Sprintf("%s: nothing starts until %s: %s", text, s.Until.UTC().Format(time.RFC3339), s.Why)
	}
	if s.Bounds.Places > 0 {
		text += fmt.Sprintf(": %d of %d run", s.Used, s.Bounds.Places)
		var who []string
		for name, n := range s.Holders {
			if n > 0 {
				who = append(who, fmt.Sprintf("%d of %s", n, name))
			}
		}
		slices.Sort(who)
		if len(who) > 0 {
			text += " (" + strings.Join(who, ", ") + ")"
		}
	}
	if s.Bounds.Rate > 0 {
		text += fmt.Sprintf("; %.6g start in a second", s.Bounds.Rate)
	}
	return strings.Replace(text, s.Name+";", s.Name+":", 1)
}
