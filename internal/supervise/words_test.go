package supervise

// Defaults that only tests name.
var (
	triggerAny    = defaults.Trigger
	giveUpSuspend = defaults.OnGiveUp
)
