package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/relaymq/relay/cmd/relay/internal/config"
)

// Mistyped is the error of a wrong call when a name is none of those that are known: what is wrong, and then the known name that is nearest to it, or all
// of them. It is nil when none are known, for then nobody can tell.
func Mistyped(name string, known []string, what string) error {
	known = slices.Compact(slices.Sorted(slices.Values(known)))
	if len(known) == 0 || slices.Contains(known, name) {
		return nil
	}
	if near := config.Nearest(name, known); near != "" {
		return fmt.Errorf("%w: %s, did you mean %s?", ErrUsage, what, Printable(near))
	}
	return fmt.Errorf("%w: %s; there are %s", ErrUsage, what, Printable(strings.Join(known, ", ")))
}
