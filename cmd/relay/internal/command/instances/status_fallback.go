package instances

import (
	"fmt"
	"io"
	"time"

	"github.com/relaymq/relay/cmd/relay/internal/cli"
)

// printFallback says what the second handler of a route does, on all its instances together.
func printFallback(w io.Writer, o over, now time.Time) {
	any, running, stuck, done, failed := false, 0, 0, uint64(0), uint64(0)
	for _, r := range o.on {
		if f := r.Fallback; f != nil {
			any = true
			running, stuck, done, failed = running+f.Running, stuck+f.Stuck, done+f.Done, failed+f.Failed
		}
	}
	if !any || running == 0 && done+failed == 0 {
		return
	}
	fmt.Fprintf(w, "\nfallback of %s: %d running, %d done, %d failed\n", cli.Printable(o.name), running, done, failed)
	if stuck > 0 {
		fmt.Fprintf(w, "  %d of its handlers ignore their timeout\n", stuck)
	}
	for i, r := range o.on {
		if f := r.Fallback; f != nil && f.FailingSince != nil {
			fmt.Fprintf(w, "  ! on %s the fallback has failed %d %s in a row, for %v; a message that it fails waits as if there were no fallback: %s\n", cli.Printable(o.instances[i]),
				f.FailedInRow, cli.Plural(f.FailedInRow, "time"), now.Sub(*f.FailingSince).Round(time.Second), cli.Printable(f.Error))
		}
	}
}
