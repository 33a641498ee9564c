package console

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"html/template"
	"io/fs"
	"maps"
	"net/url"
	"path"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
)

// assetsHash is in the paths of scripts and styles, which may be kept for ever.
var assetsHash = func() string {
	h := sha256.New()
	_ = fs.WalkDir(files, "assets", func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			b, _ := files.ReadFile(name)
			_, _ = h.Write(b)
		}
		return err
	})
	return hex.EncodeToString(h.Sum(nil))[:16]
}()

var functions = template.FuncMap{
	"when":    when,
	"ago":     func(now, t time.Time) string { return short(now.Sub(t)) },
	"in":      func(now time.Time, t *time.Time) string { return short(max(0, t.Sub(now))) },
	"rfc":     func(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) },
	"visible": visible,
	"name":    keyName,
	"command": command,
	"counts":  counts,
	"join":    strings.Join,
	"bytes":   size,
	"percent": func(share float64) string { return fmt.Sprintf("%.0f %%", 100*share) },
	"list":    func(s ...string) []string { return s },
	"dict": func(pairs ...any) map[string]any {
		m := map[string]any{}
		for i := 0; i+1 < len(pairs); i += 2 {
			m[pairs[i].(string)] = pairs[i+1]
		}
		return m
	},
	"link": link,
	"plural": func(n any, noun string) string {
		if fmt.Sprint(n) == "1" {
			return noun
		}
		return noun + "s"
	},
}

// link is a path with a query: that of a filter, and names with values that take the place of its.
func link(path string, filter url.Values, pairs ...any) string {
	q := maps.Clone(filter)
	if q == nil {
		q = url.Values{}
	}
	for i := 0; i+1 < len(pairs); i += 2 {
		q.Set(fmt.Sprint(pairs[i]), fmt.Sprint(pairs[i+1]))
	}
	if len(q) == 0 {
		return path
	}
	return path + "?" + q.Encode()
}

// templates are the pages, each with the layout. They are read when the first page is asked for: every other command would pay for them.
var templates = sync.OnceValue(func() map[string]*template.Template {
	all := make(map[string]*template.Template)
	names, _ := fs.Glob(files, "templates/*.html")
	for _, name := range names {
		base := strings.TrimSuffix(path.Base(name), ".html")
		if base != "layout" {
			all[base] = template.Must(template.New(base).Funcs(functions).ParseFS(files, "templates/layout.html", name))
		}
	}
	return all
})

func when(t time.Time) string {
	if t.IsZero() {
		return "–"
	}
	return t.UTC().Format("2006-01-02 15:04:05")
}

// short is a duration as people say it.
func short(d time.Duration) string {
	switch {
	case d < 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d < time.Hour:
		return d.Round(time.Second).String()
	case d < 48*time.Hour:
		return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
	}
	return fmt.Sprintf("%d days", int(d.Hours()/24))
}

func keyName(key string) string {
	if key == "" {
		return "(all)"
	}
	return visible(key)
}

// visible shows what cannot be seen, and what would change the order of what is around it.
func visible(s string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, strings.ToValidUTF8(s, "\ufffd"))
}

func counts(m map[string]int) string {
	var parts []string
	for _, state := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, fmt.Sprintf("%d %s", m[state], state))
	}
	return strings.Join(parts, ", ")
}

func size(n any) string {
	var f float64
	if _, err := fmt.Sscan(fmt.Sprint(n), &f); err != nil {
		return "?"
	}
	for _, unit := range []string{"B", "KiB", "MiB"} {
		if f < 1024 {
			return strings.TrimSuffix(fmt.Sprintf("%.1f", f), ".0") + " " + unit
		}
		f /= 1024
	}
	return fmt.Sprintf("%.1f GiB", f)
}

// command writes a command that can be pasted into a shell, whatever is in its words.
func command(program string, words ...string) string {
	var b strings.Builder
	b.WriteString(program)
	for _, w := range words {
		b.WriteByte(' ')
		b.WriteString(quote(w))
	}
	return b.String()
}

func quote(w string) string {
	plain := w != "" && strings.IndexFunc(w, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:=,@%+", r))
	}) < 0
	if plain {
		return w
	}
	odd := false
	for _, r := range w {
		odd = odd || r == unicode.ReplacementChar || !unicode.IsPrint(r)
	}
	if !odd {
		return "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
	}
	var b strings.Builder
	b.WriteString("$'")
	for i := range len(w) {
		if c := w[i]; c >= ' ' && c < 0x7f && c != '\'' && c != '\\' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, `\x%02x`, c)
		}
	}
	b.WriteString("'")
	return b.String()
}
