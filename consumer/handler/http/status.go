package http

import (
	"fmt"
	"strconv"
	"strings"
)

// statuses is a set of final HTTP statuses.
type statuses struct {
	in [maxStatus + 1]bool
}

// 1xx are not answers, and 600 and above are no statuses.
const (
	minStatus = 200
	maxStatus = 599
)

// parseStatuses reads "200-299,409". "none" and "" are the empty set.
func parseStatuses(s string) (*statuses, error) {
	set := new(statuses)
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
			return set, fmt.Errorf("the range %q is upside down", item)
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
	if err != nil || len(s) != 3 || code < minStatus || code > maxStatus {
		return 0, fmt.Errorf("%q is not a status from %d to %d", s, minStatus, maxStatus)
	}
	return code, nil
}

func (s *statuses) has(code int) bool { return code >= minStatus && code <= maxStatus && s.in[code] }

func (s *statuses) empty() bool { return *s == statuses{} }

// common returns the statuses that are in both sets, in order.
func (s *statuses) common(other *statuses) []int {
	var both []int
	for code := range s.in {
		if s.in[code] && other.in[code] {
			both = append(both, code)
		}
	}
	return both
}
