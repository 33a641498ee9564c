package config

import (
	"fmt"
	"log/slog"
)

const masked = "***"

// Secret is a value that prints as *** wherever it goes: fmt with any verb, log/slog, JSON, YAML. The zero value is no
// secret, and prints the same.
type Secret struct {
	// A pointer, because fmt prints the fields of a struct for a %p, without asking Format: an address shows then.
	value *string
}

// Reveal returns the value. Call it where the value is used, and keep the result nowhere.
func (s Secret) Reveal() string {
	if s.value == nil {
		return ""
	}
	return *s.value
}

// UnmarshalText takes the value as it stands.
func (s *Secret) UnmarshalText(text []byte) error {
	s.value = new(string(text))
	return nil
}

// MarshalText is what JSON, YAML and XML encoders call.
func (Secret) MarshalText() ([]byte, error) { return []byte(masked), nil }

func (Secret) String() string       { return masked }
func (Secret) GoString() string     { return masked }
func (Secret) LogValue() slog.Value { return slog.StringValue(masked) }

// Format covers the verbs that do not ask for a String method, such as %d and %x, which would print the field.
func (Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(masked)) }
