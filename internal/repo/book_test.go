package repo

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

var (
	code    = regexp.MustCompile("(?s)```.*?```|(?m)^    .*$|`[^`\n]*`")
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
)

// pages are the README and the pages of docs.
func pages(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil || len(files) < 20 {
		t.Fatal(err, files)
	}
	names := []string{"README.md", "CONTRIBUTING.md", "SECURITY.md"}
	for _, f := range files {
		names = append(names, "docs/"+filepath.Base(f))
	}
	return names
}

// slugs are the anchors that GitHub gives the headings of a page.
func slugs(page string) (all []string) {
	for _, m := range heading.FindAllStringSubmatch(page, -1) {
		slug := regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(strings.ToLower(m[1]), "")
		all = append(all, strings.ReplaceAll(slug, " ", "-"))
	}
	return all
}

// Each link of the docs leads to a file of the repository, and to a heading that it has.
func TestDocs_linksLeadSomewhere(t *testing.T) {
	t.Parallel()
	n := 0
	for _, page := range pages(t) {
		for _, m := range link.FindAllStringSubmatch(code.ReplaceAllString(text(t, page), ""), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			n++
			file, anchor, _ := strings.Cut(m[1], "#")
			to := page
			if file != "" {
				to = filepath.Join(filepath.Dir(page), file)
			}
			if _, err := os.Stat(filepath.Join(root, to)); err != nil {
				t.Errorf("%s links to %s, which is not there", page, m[1])
			} else if anchor != "" && !slices.Contains(slugs(text(t, to)), anchor) {
				t.Errorf("%s links to %s, and that page has no such heading", page, m[1])
			}
		}
	}
	if n < 100 {
		t.Errorf("%d links found", n)
	}
}

// The book's index has every page, and the README stays one that is read in five minutes.
func TestDocs_theIndexHasEveryPage(t *testing.T) {
	t.Parallel()
	index := text(t, "docs/README.md")
	for _, page := range pages(t) {
		if name := filepath.Base(page); strings.HasPrefix(page, "docs/") && name != "README.md" && !strings.Contains(index, "]("+name) {
			t.Errorf("docs/README.md does not link %s", name)
		}
	}
	if words := len(strings.Fields(text(t, "README.md"))); words > 1500 {
		t.Errorf("README.md has %d words, and 1500 is its bound: move something to docs/operate.md", words)
	}
}

// These pages are read in one sitting. What has a letter or a digit is a word, the bars of tables are not.
func TestDocs_theDesignStaysShort(t *testing.T) {
	t.Parallel()
	for page, most := range map[string]int{"docs/design.md": 3000, "docs/reliability.md": 2000} {
		words := 0
		for _, field := range strings.Fields(text(t, page)) {
			if strings.ContainsFunc(field, func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }) {
				words++
			}
		}
		if words > most {
			t.Errorf("%s has %d words, and %d is its bound: how it came about belongs into commit messages, and how a package does it into its doc.go", page, words, most)
		}
	}
}

// The glossary is in alphabetical order.
func TestDocs_theGlossaryIsInOrder(t *testing.T) {
	t.Parallel()
	var words []string
	for _, m := range regexp.MustCompile(`(?m)^\| ([a-z][a-z -]*) \| `).FindAllStringSubmatch(text(t, "docs/glossary.md"), -1) {
		words = append(words, m[1])
	}
	words = words[1:] // the head of the table
	if len(words) < 40 || !slices.IsSorted(words) {
		t.Errorf("%q", words)
	}
}
