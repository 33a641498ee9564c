//go:build !race

// Package race says to tests whether the race detector is on. It makes relay several times slower.
package race

const (
	// Enabled tells whether the race detector is on.
	Enabled = false
	// Slower is by how much it holds up a server that is under load, on a machine that tests other packages too.
	Slower = 1
)
