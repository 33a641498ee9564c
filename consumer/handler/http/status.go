package http

import (
	"time"

	"github.com/relaymq/relay/consumer/handler/internal/status"
)

// What is known of statuses is shared with the handlers whose peers use them too.

type statuses struct{ status.Set }

func parseStatuses(s string) (*statuses, error) {
	set, err := status.Parse(s)
	return &statuses{*set}, err
}

func (s *statuses) has(code int) bool                         { return s.Has(code) }
func (s *statuses) empty() bool                               { return s.Empty() }
func (s *statuses) common(other *statuses) []int              { return s.Common(&other.Set) }
func retryAfter(values []string, now time.Time) time.Duration { return status.RetryAfter(values, now) }

const maxRetryAfter = status.MaxRetryAfter
