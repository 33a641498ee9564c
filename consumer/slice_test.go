//go:build !chaos

package consumer

// fullFigures is false: a slice.
const fullFigures = false
