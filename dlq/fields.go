package dlq

import (
	"strings"

	"github.com/nats-io/nats.go"
)

// headers are those of a message: a nats.Header, or fields.
type headers interface {
	// Values are those of a name, in their order.
	Values(name string) []string
}

// first is the first value of a name, or nothing.
func first(h headers, name string) string {
	if values := h.Values(name); len(values) > 0 {
		return values[0]
	}
	return ""
}

// asHeader is the whole map.
func asHeader(h headers) nats.Header {
	if f, ok := h.(*fields); ok {
		return f.header()
	}
	return h.(nats.Header)
}

// fields are headers as nats.DecodeHeadersMsg reads them, without a map and a slice for each. The zero value has none.
type fields struct {
	names, values []string
	// before says which name of the same slot came before, plus one, and last which is the latest. An entry is asked for some
	// thirty names, and has twenty.
	before []int
	last   [64]int
}

// slot spreads the names of relay's own headers, most of which differ in length or at their ends.
func slot(name string) int { return (4*len(name) + int(name[len(name)-1])) % 64 }

// read forgets what was read before. A block that nats.go cannot read has no headers.
func (f *fields) read(block []byte) {
	f.clear()
	if !f.parse(string(block)) { // one copy: names and values are parts of it
		f.clear()
	}
}

func (f *fields) clear() {
	f.names, f.values, f.before, f.last = f.names[:0], f.values[:0], f.before[:0], [64]int{}
}

func (f *fields) parse(text string) bool {
	first, text, ok := cutLine(text)
	status, isHeader := strings.CutPrefix(first, "NATS/1.0")
	if !ok || !isHeader {
		return false
	}
	for {
		var line string
		if line, text, ok = cutLine(text); !ok {
			return false
		}
		if line == "" {
			break
		}
		colon := strings.IndexByte(line, ':')
		if colon < 0 {
			return false
		}
		value := colon + 1
		for value < len(line) && (line[value] == ' ' || line[value] == '\t') {
			value++
		}
		if colon > 0 {
			f.add(line[:colon], line[value:])
		}
	}
	if status == "" {
		return true
	}
	status = strings.TrimSpace(status)
	if len(status) < 3 {
		return false
	}
	f.add("Status", status[:3])
	if description := strings.TrimSpace(status[3:]); description != "" {
		f.add("Description", description)
	}
	return true
}

func cutLine(s string) (line, rest string, ok bool) {
	end := strings.IndexByte(s, '\n')
	if end < 0 {
		return "", "", false
	}
	return strings.TrimSuffix(s[:end], "\r"), s[end+1:], true
}

// add takes a name that is not empty.
func (f *fields) add(name, value string) {
	at := slot(name)
	f.names, f.values, f.before = append(f.names, name), append(f.values, value), append(f.before, f.last[at])
	f.last[at] = len(f.names)
}

// Values are good until the next read. The name must not be empty.
func (f *fields) Values(name string) (values []string) {
	for i := f.last[slot(name)]; i > 0; i = f.before[i-1] {
		if f.names[i-1] != name {
			continue
		}
		if values != nil {
			return f.header()[name] // rare
		}
		values = f.values[i-1 : i : i]
	}
	return values
}

// header is what nats.DecodeHeadersMsg returns.
func (f *fields) header() nats.Header {
	h := make(nats.Header, len(f.names))
	for i, name := range f.names {
		h[name] = append(h[name], f.values[i])
	}
	return h
}
