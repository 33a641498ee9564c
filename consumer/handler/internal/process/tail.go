package process

// Tail keeps the last Keep bytes written to it.
type Tail struct {
	Keep int
	kept []byte
}

// Bytes are what is kept.
func (t *Tail) Bytes() []byte { return t.kept }

func (t *Tail) Write(b []byte) (int, error) {
	n := len(b)
	if n >= t.Keep {
		t.kept, b = t.kept[:0], b[n-t.Keep:]
	} else if over := len(t.kept) + n - t.Keep; over > 0 {
		t.kept = t.kept[:copy(t.kept, t.kept[over:])]
	}
	t.kept = append(t.kept, b...)
	return n, nil
}
