//go:build chaos

package chaos

// Full runs the rows at their figures.
const Full = true

// buildTags of the programs under test: the test-only switches come with the tag.
var buildTags = []string{"-tags=chaos"}
