package supervisor_test

import (
	"fmt"
	"time"

	"github.com/relaymq/relay/supervisor"
)

func ExampleBackoff() {
	b := supervisor.Backoff{Policy: supervisor.Fibonacci, Min: time.Second, Max: 10 * time.Second}.WithRetryDefaults()
	for n := range 7 {
		fmt.Print(b.Base(n), " ")
	}
	// Output: 1s 1s 2s 3s 5s 8s 10s
}
