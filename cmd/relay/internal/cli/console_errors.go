package cli

import (
	"errors"
	"strings"

	"github.com/relaymq/relay/cmd/relay/internal/console"
)

// Said is an error with a text of its own, of one of the kinds that the console tells apart.
func Said(text string, kind error) error { return &said{text, kind} }

type said struct {
	text string
	kind error
}

func (e *said) Error() string { return e.text }
func (e *said) Unwrap() error { return e.kind }

// ForConsole tells the console which errors are the operator's.
func ForConsole(err error) error {
	if errors.Is(err, ErrUsage) {
		return &console.UsageError{Err: errors.New(strings.TrimPrefix(err.Error(), ErrUsage.Error()+": "))}
	}
	return err
}
