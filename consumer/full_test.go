//go:build chaos

package consumer

// fullFigures has tests run at the figures that docs/reliability.md promises.
const fullFigures = true
