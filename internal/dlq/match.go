package dlq

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"regexp"
	"strconv"
	"strings"
)

// BodyMatch is a condition on a body that is JSON, written as a path, an operator and a value:
//
//	.customer.id=42          the number 42 or the text "42"
//	.customer.country!=DE    there, and something else
//	.total>=99.50            also >, <, <=: numbers, else text in the order of its bytes
//	.note~^late              text that matches a regular expression
//	.items[0].sku=A-1        an index
//	.items[].sku=A-1         any element
//	."odd.key"=true          a name in quotes, as in JSON
//	.customer.vat            there, whatever it is
//	.=42                     the whole body
//
// A value is text up to the end. In quotes it is text only, never a number: .id="42". A body that is no JSON never matches.
type BodyMatch struct {
	text  string
	path  []step
	op    string
	value string
	isStr bool // the value was in quotes
	num   *big.Rat
	re    *regexp.Regexp
}

// step is one part of a path: a name, an index, or any element.
type step struct {
	name  string
	index int
	kind  byte // 'n', 'i' or '*'
}

// ParseBodyMatch reads a condition.
func ParseBodyMatch(s string) (BodyMatch, error) {
	m := BodyMatch{text: s}
	rest, err := m.parsePath(s)
	if err != nil {
		return BodyMatch{}, fmt.Errorf("%q: %w (for instance .customer.id=42)", s, err)
	}
	rest = strings.TrimLeft(rest, " ")
	if rest == "" {
		return m, nil
	}
	for _, op := range []string{"!=", ">=", "<=", "==", "=", "~", ">", "<"} {
		if v, ok := strings.CutPrefix(rest, op); ok {
			m.op, m.value = op, strings.TrimSpace(v)
			break
		}
	}
	switch m.op {
	case "":
		return BodyMatch{}, fmt.Errorf("%q: %q is no operator: use =, !=, ~, >, >=, < or <=", s, rest)
	case "==":
		m.op = "="
	case "~":
		if m.re, err = regexp.Compile(m.value); err != nil {
			return BodyMatch{}, fmt.Errorf("%q: %w", s, err)
		}
		return m, nil
	}
	if len(m.value) >= 2 && m.value[0] == '"' {
		if err := json.Unmarshal([]byte(m.value), &m.value); err != nil {
			return BodyMatch{}, fmt.Errorf("%q: %w", s, err)
		}
		m.isStr = true
		return m, nil
	}
	m.num = parseNumber(m.value)
	return m, nil
}

func (m *BodyMatch) parsePath(s string) (rest string, err error) {
	if !strings.HasPrefix(s, ".") {
		return "", errors.New("must begin with a dot")
	}
	for first := true; ; first = false {
		switch {
		case strings.HasPrefix(s, "["):
			inside, after, ok := strings.Cut(s[1:], "]")
			if !ok {
				return "", errors.New("] is missing")
			}
			st := step{kind: '*'}
			if inside != "" {
				st.kind = 'i'
				if st.index, err = strconv.Atoi(inside); err != nil || st.index < 0 {
					return "", fmt.Errorf("%q is not an index", inside)
				}
			}
			m.path, s = append(m.path, st), after
		case strings.HasPrefix(s, `."`):
			quoted, err := strconv.QuotedPrefix(s[1:])
			if err != nil {
				return "", errors.New("a quote is missing")
			}
			var name string
			if err := json.Unmarshal([]byte(quoted), &name); err != nil {
				return "", err
			}
			m.path, s = append(m.path, step{kind: 'n', name: name}), s[1+len(quoted):]
		case strings.HasPrefix(s, "."):
			end := strings.IndexAny(s[1:], ".[=!~<> ")
			if end < 0 {
				end = len(s) - 1
			}
			name := s[1 : 1+end]
			s = s[1+end:]
			if name == "" {
				if first && !strings.HasPrefix(s, ".") { // the body itself
					continue
				}
				return "", errors.New("a name is missing after a dot")
			}
			if strings.ContainsAny(name, `]"{}`) {
				return "", fmt.Errorf("%q must be in quotes: .\"name\"", name)
			}
			m.path = append(m.path, step{kind: 'n', name: name})
		default:
			return s, nil
		}
	}
}

// String is what was parsed.
func (m BodyMatch) String() string { return m.text }

// MarshalText is String.
func (m BodyMatch) MarshalText() ([]byte, error) { return []byte(m.text), nil }

// UnmarshalText is [ParseBodyMatch].
func (m *BodyMatch) UnmarshalText(text []byte) (err error) {
	*m, err = ParseBodyMatch(string(text))
	return err
}

// parseBody is a body as JSON; false when it is none.
func parseBody(body []byte) (any, bool) {
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, false
	}
	_, err := d.Token()
	return v, errors.Is(err, io.EOF)
}

// Match tells whether the body meets the condition.
func (m BodyMatch) Match(body []byte) bool {
	v, ok := parseBody(body)
	return ok && m.at(v, m.path)
}

func (m BodyMatch) at(v any, path []step) bool {
	if len(path) == 0 {
		return m.test(v)
	}
	st := path[0]
	switch v := v.(type) {
	case map[string]any:
		below, ok := v[st.name]
		return st.kind == 'n' && ok && m.at(below, path[1:])
	case []any:
		switch {
		case st.kind == 'i':
			return st.index < len(v) && m.at(v[st.index], path[1:])
		case st.kind == '*':
			for _, e := range v {
				if m.at(e, path[1:]) {
					return true
				}
			}
		}
	}
	return false
}

func (m BodyMatch) test(v any) bool {
	if m.op == "" {
		return true
	}
	var text string
	var num *big.Rat
	switch v := v.(type) {
	case string:
		text = v
	case json.Number:
		text = v.String()
		if m.num != nil {
			num = parseNumber(text)
		}
	default: // true, false, null, objects and lists as compact JSON
		b, err := json.Marshal(v)
		if err != nil {
			return false
		}
		text = string(b)
	}
	_, isText := v.(string)
	if m.op == "~" {
		return m.re.MatchString(text)
	}
	c := strings.Compare(text, m.value)
	if num != nil {
		c = num.Cmp(m.num)
	} else if m.isStr && !isText {
		return m.op == "!="
	} else if m.num != nil && m.op != "=" && m.op != "!=" {
		return false // larger and smaller than a number is a number only
	}
	switch m.op {
	case "=":
		return c == 0
	case "!=":
		return c != 0
	case ">":
		return c > 0
	case ">=":
		return c >= 0
	case "<":
		return c < 0
	}
	return c <= 0
}

var numberRule = regexp.MustCompile(`^-?[0-9]{1,64}(\.[0-9]{1,64})?([eE][+-]?[0-9]{1,3})?$`)

// parseNumber is exact, for ids of 64 bits too; nil for what is no number, or one that nobody means.
func parseNumber(s string) *big.Rat {
	if !numberRule.MatchString(s) {
		return nil
	}
	r, _ := new(big.Rat).SetString(s)
	return r
}
