// Package status is what handlers make of the statuses of HTTP, which services of NATS use too: sets of them, and Retry-After.
package status

import (
	"fmt"
	"strconv"
	"strings"
)

// Set is a set of final HTTP statuses.
type Set struct {
	in [Max + 1]bool
}

// Min and Max are the first and the last: 1xx are not answers, and 600 and above are no statuses.
const (
	Min = 200
	Max = 599
)

// DefaultDead are the statuses that say of a message that it can never be handled.
const DefaultDead = "400,410,413,414,415,422,431"

// Parse reads "200-299,409". "none" and "" are the empty set.
func Parse(s string) (*Set, error) {
	set := new(Set)
	if s == "" || s == "none" {
		return set, nil
	}
	for item := range strings.SplitSeq(s, ",") {
		item = strings.TrimSpace(item)
		from, to, isRange := strings.Cut(item, "-")
		if !isRange {
			to = from
		}
		lo, err := parseStatus(from)
		if err != nil {
			return set, err
		}
		hi, err := parseStatus(to)
		if err != nil {
			return set, err
		}
		if lo > hi {
			return set, fmt.Errorf("the range %q has its larger number first", item)
		}
		for code := lo; code <= hi; code++ {
			set.in[code] = true
		}
	}
	return set, nil
}

func parseStatus(s string) (int, error) {
	s = strings.TrimSpace(s)
	code, err := strconv.Atoi(s)
	if err != nil || len(s) != 3 || code < Min || code > Max {
		return 0, fmt.Errorf("%q is not a status from %d to %d", s, Min, Max)
	}
	return code, nil
}

// Has tells whether a status is in the set.
func (s *Set) Has(code int) bool { return code >= Min && code <= Max && s.in[code] }

// Empty tells whether none is.
func (s *Set) Empty() bool { return *s == Set{} }

// Common returns the statuses that are in both sets, in order.
func (s *Set) Common(other *Set) []int {
	var both []int
	for code := range s.in {
		if s.in[code] && other.in[code] {
			both = append(both, code)
		}
	}
	return both
}
