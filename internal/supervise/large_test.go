package supervise

import (
	"testing"

	"github.com/relaymq/relay/internal/race"
)

// large is the beginning of a test that plays hours with thousands of messages, which takes ten times as long with the race detector. What it plays
// runs one after the other; the other tests of this package show races. `make test-timed` runs these without it. Their names end in _large.
func large(t *testing.T) {
	t.Helper()
	if race.Enabled {
		t.Skip("it plays hours with thousands of messages: make test-timed runs it")
	}
	t.Parallel()
}
