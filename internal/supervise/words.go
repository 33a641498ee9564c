package supervise

import "github.com/relaymq/relay/supervisor"

// What the words of supervisor.Config say by default. They have no names there: a program leaves the word out.
var (
	defaults     = supervisor.Config{}.WithDefaults()
	scopeKey     = defaults.RetryAfter
	forwardStash = defaults.Forward
	resetSuccess = defaults.Reset
)
