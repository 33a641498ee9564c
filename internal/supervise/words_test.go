package supervise

import "github.com/relaymq/relay/supervisor"

// Defaults that only tests name.
var (
	triggerAny    = defaults.Trigger
	giveUpSuspend = defaults.OnGiveUp
)

const orderNone supervisor.Order = "none"
