package handler

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
)

const (
	masked    = "***"
	maxSecret = 64 << 10
)

// Secret is a value that a configuration gives as text or as {file: path}. It prints as *** wherever it goes: fmt with any
// verb, log/slog, JSON, YAML. The zero value is no secret, and prints the same.
type Secret struct {
	// A pointer, because fmt prints the fields of a struct for a %p, without asking Format: an address shows then.
	value *string
	file  string
}

// SecretText is a secret that stands in the configuration itself.
func SecretText(s string) Secret { return Secret{value: &s} }

// SecretFile reads a secret from a file.
func SecretFile(path string) (Secret, error) {
	s, err := ReadSecret(path)
	if err != nil {
		return Secret{}, err
	}
	return Secret{value: &s, file: path}, nil
}

// ReadSecret is the text of a file of at most 64 KiB, without the newline at its end. A file that holds nothing is an error.
// Errors do not name the file.
func ReadSecret(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", withoutPath(err)
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.IsDir() {
		return "", errors.New("is a directory")
	}
	data, err := io.ReadAll(io.LimitReader(f, maxSecret+1))
	if err != nil {
		return "", withoutPath(err)
	}
	if len(data) > maxSecret {
		return "", fmt.Errorf("is larger than %d bytes", maxSecret)
	}
	s := strings.TrimSuffix(strings.TrimSuffix(string(data), "\n"), "\r")
	if s == "" {
		return "", errors.New("is empty")
	}
	return s, nil
}

func withoutPath(err error) error {
	if p := (*os.PathError)(nil); errors.As(err, &p) {
		return p.Err
	}
	return err
}

// Reveal returns the value as it was when the configuration was read. Call it where the value is used, and keep the result
// nowhere.
func (s Secret) Reveal() string {
	if s.value == nil {
		return ""
	}
	return *s.value
}

// File is the file that the secret came from, or "".
func (s Secret) File() string { return s.file }

// Read returns the value as it is now: of a file, what the file holds.
func (s Secret) Read() (string, error) {
	if s.file == "" {
		return s.Reveal(), nil
	}
	v, err := ReadSecret(s.file)
	if err != nil {
		return "", fmt.Errorf("the file %q: %w", s.file, err)
	}
	return v, nil
}

// UnmarshalText takes the value as it stands.
func (s *Secret) UnmarshalText(text []byte) error {
	*s = SecretText(string(text))
	return nil
}

// MarshalText is what JSON, YAML and XML encoders call.
func (Secret) MarshalText() ([]byte, error) { return []byte(masked), nil }

func (Secret) String() string { return masked }

// GoString is what %#v prints.
func (Secret) GoString() string { return masked }

// LogValue is what slog writes.
func (Secret) LogValue() slog.Value { return slog.StringValue(masked) }

// Format covers the verbs that do not ask for a String method, such as %d and %x, which would print the field.
func (Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(masked)) }
