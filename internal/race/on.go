//go:build race

package race

const (
	// Enabled tells whether the race detector is on.
	Enabled = true
	// Slower is by how much it holds up a server that is under load, on a machine that tests other packages too.
	Slower = 5
)
