//go:build !chaos

package failpoint

// At marks a step.
func At(string) {}
