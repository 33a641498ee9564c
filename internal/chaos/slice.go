//go:build !chaos

package chaos

// Full is false: a slice of each row.
const Full = false

var buildTags []string
