//go:build race

package retry

// slow is by how much the race detector, on a machine that tests other packages too, holds up a server that is under
// load.
const slow = 5
