package supervisor

// What a group holds before it starts it, beside the stash: at most MaxWindow messages, or as many as its concurrency, and
// MaxWindowBytes of them.
const (
	MaxWindow      = maxWindow
	MaxWindowBytes = maxWindowBytes
)
