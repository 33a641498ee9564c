// Package headerlist is the list of message headers that a handler copies: names, and beginnings of names that end in *.
package headerlist

import "strings"

// List is what a config's forward_headers say. The zero value has no names.
type List struct {
	names    map[string]bool // in lower case
	prefixes []string        // in lower case
}

// New reads entries such as Traceparent, ce-* and *. Case does not matter, as in HTTP; NATS keeps a publisher's spelling.
func New(entries []string) List {
	l := List{names: make(map[string]bool)}
	for _, e := range entries {
		if name, isPrefix := Split(strings.ToLower(e)); isPrefix {
			l.prefixes = append(l.prefixes, name)
		} else {
			l.names[name] = true
		}
	}
	return l
}

// Split takes the * off an entry that has one at its end.
func Split(entry string) (name string, isPrefix bool) { return strings.CutSuffix(entry, "*") }

// Empty tells whether the list has no name.
func (l List) Empty() bool { return len(l.names) == 0 && len(l.prefixes) == 0 }

// Has tells whether a header of that name is in the list.
func (l List) Has(name string) bool {
	if l.Empty() {
		return false
	}
	name = strings.ToLower(name)
	if l.names[name] {
		return true
	}
	for _, p := range l.prefixes {
		if strings.HasPrefix(name, p) {
			return true
		}
	}
	return false
}
