package config

import "strings"

// Nearest is the one of names that somebody who wrote name may have meant, or "" when none is close.
func Nearest(name string, names []string) string {
	var k key
	for _, n := range names {
		k.fields = append(k.fields, &key{name: n})
	}
	return suggest(&k, name)
}

// suggest finds the key of k, or one further down, that somebody who wrote name may have meant. It returns "" when none
// is close.
func suggest(k *key, name string) string {
	if len(name) > 64 {
		return ""
	}
	plain := func(s string) string { return strings.NewReplacer("_", "", "-", "").Replace(strings.ToLower(s)) }
	best, least := "", 3
	for _, f := range k.fields {
		d := distance(plain(name), plain(f.name))
		// Two slips in a word of four letters make another word.
		if d < least && d <= len(f.name)/3 {
			best, least = f.name, d
		}
	}
	if best != "" {
		return best
	}
	for _, f := range k.fields {
		for _, below := range f.fields {
			if plain(below.name) == plain(name) {
				return f.name + "." + below.name
			}
		}
	}
	for _, f := range k.fields { // handler.exec.command for command
		for _, below := range f.fields {
			for _, deep := range below.fields {
				if plain(deep.name) == plain(name) {
					return f.name + "." + below.name + "." + deep.name
				}
			}
		}
	}
	return ""
}

// distance counts the letters to add, take away, replace or swap with their neighbour to make b of a.
func distance(a, b string) int {
	// Rows for the prefixes of a: two before the last, the last, this one.
	var older, old, row []int
	for i := 0; i <= len(a); i++ {
		older, old, row = old, row, make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			if i == 0 {
				row[j] = j
				continue
			}
			differ := 1
			if a[i-1] == b[j-1] {
				differ = 0
			}
			row[j] = min(old[j]+1, row[j-1]+1, old[j-1]+differ)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], older[j-2]+1)
			}
		}
	}
	return row[len(b)]
}
