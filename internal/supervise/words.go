package supervise

import "github.com/relaymq/relay/supervisor"

// What the words of supervisor.Config say by default, as its WithDefaults fills them in. They have no names there: a program leaves the word out.
const (
	scopeKey      supervisor.Scope   = "key"
	triggerAny    supervisor.Trigger = "any"
	forwardStash  supervisor.Forward = "stash"
	giveUpSuspend supervisor.GiveUp  = "suspend"
	resetSuccess  supervisor.Reset   = "success"
	orderNone     supervisor.Order   = "none"
)
