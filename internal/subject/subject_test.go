package subject

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestMatches(t *testing.T) {
	for _, c := range []struct {
		pattern, literal string
		want             bool
	}{
		{"a", "a", true}, {"a", "b", false}, {"a", "a.b", false}, {"a.b", "a", false},
		{"*", "a", true}, {"*", "a.b", false}, {"a.*", "a.b", true}, {"a.*", "a", false}, {"*.b", "a.b", true},
		{">", "a", true}, {">", "a.b.c", true}, {"a.>", "a", false}, {"a.>", "a.b", true}, {"a.>", "a.b.c", true},
		{"a.*.c", "a.b.c", true}, {"a.*.c", "a.b.d", false}, {"*.>", "a", false}, {"*.>", "a.b", true},
		// Published subjects may hold wildcards: they are plain tokens then.
		{"a.*", "a.>", true}, {"a.b", "a.*", false}, {"a.b", "a.>", false}, {"a.>", "a.>", true},
		{"a", "", false}, {"", "", true}, {"a.*", "a.", true},
	} {
		if got := Matches(c.pattern, c.literal); got != c.want {
			t.Errorf("%q matches %q: %v", c.pattern, c.literal, got)
		}
	}
}

func TestCoversAndOverlaps(t *testing.T) {
	for _, c := range []struct {
		a, b                        string
		aCoversB, bCoversA, overlap bool
	}{
		{"a", "a", true, true, true},
		{"a", "b", false, false, false},
		{"a.*", "a.b", true, false, true},
		{"a.*", "*.b", false, false, true},
		{"a.>", "a", false, false, false},
		{"a.>", "a.*", true, false, true},
		{"a.>", "a.*.c", true, false, true},
		{"a.*", "a.>", false, true, true},
		{">", "*", true, false, true},
		{">", ">", true, true, true},
		{"*.>", ">", false, true, true},
		{"a.>", "b.>", false, false, false},
		{"a.*.c", "a.b.>", false, false, true},
		{"a.*", "a.b.c", false, false, false},
		{"*.*.d", "a.>", false, false, true},
	} {
		if got := Covers(c.a, c.b); got != c.aCoversB {
			t.Errorf("%q covers %q: %v", c.a, c.b, got)
		}
		if got := Covers(c.b, c.a); got != c.bCoversA {
			t.Errorf("%q covers %q: %v", c.b, c.a, got)
		}
		if x, y := Overlaps(c.a, c.b), Overlaps(c.b, c.a); x != c.overlap || y != c.overlap {
			t.Errorf("%q overlaps %q: %v, the other way %v", c.a, c.b, x, y)
		}
	}
}

// alphabet and depth are so small that all literals can be tried. z occurs in no pattern: it stands for every token that
// no pattern names, and one token more than the longest pattern stands for every longer literal.
const depth = 3

var literals = func() (all []string) {
	level := []string{""}
	for range depth + 1 {
		var next []string
		for _, prefix := range level {
			for _, token := range []string{"a", "b", "z"} {
				next = append(next, strings.TrimPrefix(prefix+"."+token, "."))
			}
		}
		all = append(all, next...)
		level = next
	}
	return all
}()

func pattern() *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		tokens := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "*"}), 1, depth).Draw(t, "tokens")
		if rapid.Bool().Draw(t, "full") {
			tokens[len(tokens)-1] = ">"
		}
		return strings.Join(tokens, ".")
	})
}

// Covers, Overlaps and Intersect say about sets of subjects what Matches says about each.
func TestPatterns_agreeWithTheLiteralsTheyMatch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := pattern().Draw(t, "a"), pattern().Draw(t, "b")
		covers, overlaps := true, false
		both, some := Intersect(a, b)
		for _, l := range literals {
			inA, inB := Matches(a, l), Matches(b, l)
			if (inA && inB) != (some && Matches(both, l)) {
				t.Fatalf("%q is where %q and %q meet: %s", both, a, b, l)
			}
			covers = covers && (inA || !inB)
			overlaps = overlaps || inA && inB
		}
		if got := Covers(a, b); got != covers {
			t.Fatalf("%q covers %q: %v", a, b, got)
		}
		if got := Overlaps(a, b); got != overlaps {
			t.Fatalf("%q overlaps %q: %v", a, b, got)
		}
		// Of two patterns that a dispatcher has to choose from, the one inside the other is the more specific.
		if covers && a != b && Compare(b, a) >= 0 {
			t.Fatalf("%q is inside %q and not more specific", b, a)
		}
	})
}

func TestCompare_isAnOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := rapid.SliceOfN(pattern(), 3, 3).Draw(t, "patterns")
		a, b, c := all[0], all[1], all[2]
		if sign(Compare(a, b)) != -sign(Compare(b, a)) {
			t.Fatalf("%q and %q", a, b)
		}
		if Compare(a, b) <= 0 && Compare(b, c) <= 0 && Compare(a, c) > 0 {
			t.Fatalf("%q, %q, %q", a, b, c)
		}
	})
}

func sign(n int) int {
	return min(1, max(-1, n))
}

func TestCompare(t *testing.T) {
	got := []string{">", "a.>", "a.*", "*.b", "a.b", "a.*.c", "a.b.c", "a"}
	slices.SortStableFunc(got, Compare)
	want := []string{"a.b.c", "a.b", "a.*.c", "a.*", "a.>", "a", "*.b", ">"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
}

func TestValidatePattern(t *testing.T) {
	for s, want := range map[string]string{
		"a": "", "a.*.>": "", "*": "", ">": "", "a-b_c:d/e": "", "ümlaut.☃": "", "$JS.x": "",
		"": "empty token", ".": "empty token", "a.": "empty token", ".a": "empty token", "a..b": "empty token",
		">.a": "may only be the last", "a.>.b": "may only be the last",
		"a*": "whole tokens", "*a.b": "whole tokens", "a.b>": "whole tokens", "**": "whole tokens",
		"a b": "white space", "a\tb": "white space", "a\x00": "control byte", "a\r\n": "white space", "\x7f": "control byte",
	} {
		check(t, s, ValidatePattern(s), want)
	}
}

func TestValidateLiteral(t *testing.T) {
	for s, want := range map[string]string{
		"a.b": "", "a.$x": "", strings.Repeat("x", MaxLen): "",
		"a..b": "empty token", "*": "wildcard", "a.>": "wildcard", "$JS.API": "belongs to the server", "_INBOX.x": "belongs to the server",
		strings.Repeat("x", MaxLen+1): "longer than",
	} {
		check(t, s, ValidateLiteral(s), want)
	}
}

func check(t *testing.T, s string, err error, want string) {
	t.Helper()
	if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
		t.Errorf("%q: %v, want %q", s, err, want)
	}
}

func TestTemplate(t *testing.T) {
	for _, c := range []struct{ template, subject, want, pattern string }{
		{"x.y", "a.b", "x.y", "x.y"},
		{"{1}", "a.b", "a", "*"},
		{"{2}.{1}", "a.b", "b.a", "*.*"},
		{"x.{subject}", "a.b", "x.a.b", "x.>"},
		{"{subject}.x", "a.b", "a.b.x", ">"},
		{"x-{1}.y", "a.b", "x-a.y", "*.y"},
		{"x.y{subject}.z", "a.b", "x.ya.b.z", "x.>"},
		{"{1}{2}", "a.b", "ab", "*"},
		{"{02}", "a.b", "b", "*"},
		{"}", "a", "}", "}"},
		{"", "a", "", ""},
	} {
		tpl, err := ParseTemplate(c.template)
		if err != nil {
			t.Errorf("%q: %v", c.template, err)
			continue
		}
		if got, err := tpl.Expand(c.subject); got != c.want || err != nil {
			t.Errorf("%q of %q: %q, %v", c.template, c.subject, got, err)
		}
		if got := tpl.Pattern(); got != c.pattern {
			t.Errorf("%q: pattern %q, want %q", c.template, got, c.pattern)
		}
	}
	for template, want := range map[string]string{
		"{": "without }", "a{1": "without }", "{}": "unknown placeholder", "{0}": "unknown placeholder", "{x}": "unknown placeholder",
		"{-1}": "unknown placeholder", "{ 1}": "unknown placeholder", "{99999999999999999999}": "unknown placeholder", "{{1}}": "unknown placeholder",
	} {
		_, err := ParseTemplate(template)
		check(t, template, err, want)
	}
	tpl, err := ParseTemplate("{3}")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := tpl.Expand("a.b"); got != "" || err != ErrNoToken {
		t.Errorf("too few tokens: %q, %v", got, err)
	}
}

// What a template makes of a well-formed subject lies in its pattern.
func TestTemplate_staysInItsPattern(t *testing.T) {
	part := rapid.SampledFrom([]string{"a", "b", ".", "{1}", "{2}", "{subject}", "x-"})
	rapid.Check(t, func(t *rapid.T) {
		s := strings.Join(rapid.SliceOfN(part, 1, 6).Draw(t, "parts"), "")
		tpl, err := ParseTemplate(s)
		if err != nil {
			t.Fatal(err)
		}
		got, err := tpl.Expand(rapid.SampledFrom(literals).Draw(t, "subject"))
		if err == nil && ValidateLiteral(got) == nil && !Matches(tpl.Pattern(), got) {
			t.Fatalf("%q made %q, outside %q", s, got, tpl.Pattern())
		}
	})
}

func FuzzSubject(f *testing.F) {
	f.Add("a.*.>", "a.>", "x.{1}.{subject}")
	f.Add("a..b", ">.a", "{")
	f.Add("*", "\x00", "{1}{2}")
	f.Fuzz(func(t *testing.T, a, b, template string) {
		okA, okB := ValidatePattern(a) == nil, ValidatePattern(b) == nil
		if Overlaps(a, b) != Overlaps(b, a) {
			t.Error("Overlaps is not symmetric")
		}
		if okA && (!Covers(a, a) || !Overlaps(a, a) || !Matches(a, a) || Compare(a, a) != 0) {
			t.Errorf("%q and itself", a)
		}
		if okA && okB && Covers(a, b) && !Overlaps(a, b) {
			t.Errorf("%q covers %q without overlap", a, b)
		}
		if okA && ValidateLiteral(b) == nil {
			if m := Matches(a, b); m != Overlaps(a, b) || m != Covers(a, b) {
				t.Errorf("%q and the literal %q: matches %v, overlaps %v, covers %v", a, b, m, Overlaps(a, b), Covers(a, b))
			}
		}
		tpl, err := ParseTemplate(template)
		if err != nil {
			return
		}
		got, err := tpl.Expand(b)
		if err == nil && ValidateLiteral(b) == nil && ValidateLiteral(got) == nil && !Matches(tpl.Pattern(), got) {
			t.Errorf("%q of %q is %q, outside %q", template, b, got, tpl.Pattern())
		}
	})
}
