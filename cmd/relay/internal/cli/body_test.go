package cli

import (
	"fmt"
	"strings"
	"testing"
)

// 48 KB of nested arrays were 192 MB on the screen.
func TestDLQ_deeplyNestedJSONIsNotIndented(t *testing.T) {
	for _, body := range []string{
		strings.Repeat("[", 5000) + strings.Repeat("]", 5000),
		strings.Repeat(`{"a":`, 4000) + "1" + strings.Repeat("}", 4000),
		strings.Repeat("[", 100) + strings.Repeat("1,", 100_000) + "1" + strings.Repeat("]", 100),
	} {
		if got := BodyText([]byte(body)); len(got) > 20*len(body) {
			t.Errorf("%.20s…: %d bytes of %d", body, len(got), len(body))
		}
	}
	small := `{"order":{"id":7,"items":[{"sku":"A","n":1},{"sku":"[\"}","n":2}],"note":"a,b"}}`
	if got := BodyText([]byte(small)); strings.Count(got, "\n") < 10 {
		t.Errorf("not indented: %s", got)
	}
	if got := BodyText([]byte(fmt.Sprintf("%q", strings.Repeat(`[{,\"`, 1000)))); strings.Contains(got, "\n") {
		t.Errorf("what is in quotes is not nested: %.80s", got)
	}
}
