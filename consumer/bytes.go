package consumer

import (
	"fmt"
	"strconv"
	"strings"
)

// Bytes is a size, written as "64MiB", "1GB" or a plain number of bytes.
type Bytes int64

var byteUnits = []struct {
	suffix string
	size   float64
}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40}, {"kB", 1e3}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}, {"B", 1}, {"", 1}}

// UnmarshalText reads a size.
func (b *Bytes) UnmarshalText(text []byte) error {
	s := strings.TrimSpace(string(text))
	for _, u := range byteUnits {
		number, ok := strings.CutSuffix(s, u.suffix)
		if !ok {
			continue
		}
		f, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
		if err != nil || f < 0 || f*u.size >= 1<<63 || f != f {
			break
		}
		*b = Bytes(f * u.size)
		return nil
	}
	return fmt.Errorf("%q is not a size such as 64MiB", s)
}

// MarshalText writes the largest binary unit that divides the size.
func (b Bytes) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

func (b Bytes) String() string {
	for _, u := range []struct {
		suffix string
		shift  uint
	}{{"TiB", 40}, {"GiB", 30}, {"MiB", 20}, {"KiB", 10}} {
		if b != 0 && b%(1<<u.shift) == 0 {
			return fmt.Sprintf("%d%s", b>>u.shift, u.suffix)
		}
	}
	return strconv.FormatInt(int64(b), 10)
}
