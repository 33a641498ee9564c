package consumer

import (
	"testing"

	"github.com/relaymq/relay/internal/race"
)

// timed is the beginning of a test that measures times, or how much comes in a time. Such a test waits most of the time, and what it measures is
// another thing with the race detector, which makes relay several times slower: `make test-timed` runs these without it, some side by side.
// Their names end in _timed.
func timed(t *testing.T) {
	t.Helper()
	if race.Enabled {
		t.Skip("it measures times, which the race detector changes: make test-timed runs it")
	}
	t.Parallel()
}
