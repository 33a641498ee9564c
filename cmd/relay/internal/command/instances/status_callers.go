package instances

import (
	"fmt"
	"io"

	"github.com/relaymq/relay/cmd/relay/internal/cli"
	"github.com/relaymq/relay/internal/control"
)

// printCallers says what became of messages whose publishers asked for something.
func printCallers(w io.Writer, o over) {
	var all control.CallersStatus
	any := false
	for _, r := range o.on {
		if c := r.Callers; c != nil {
			any = true
			all.Expired, all.Forgotten, all.Asking = all.Expired+c.Expired, all.Forgotten+c.Forgotten, all.Asking+c.Asking
			all.Again, all.Silent, all.Refused = all.Again+c.Again, all.Silent+c.Silent, all.Refused+c.Refused
			all.Replied, all.Undelivered = all.Replied+c.Replied, all.Undelivered+c.Undelivered
			all.Unsure, all.Telling = all.Unsure+c.Unsure, all.Telling+c.Telling
		}
	}
	if !any {
		return
	}
	fmt.Fprintf(w, "\ncallers of %s: %d told, %d not reached, %d forgotten, %d expired\n", cli.Printable(o.name), all.Replied, all.Undelivered, all.Forgotten, all.Expired)
	if all.Asking > 0 {
		fmt.Fprintf(w, "  relay is asking the callers of %d %s whether they still want the result, for interest.timeout at most\n", all.Asking, cli.Plural(all.Asking, "message"))
	}
	if all.Telling > 0 {
		fmt.Fprintf(w, "  relay is sending %d %s to callers who may be reconnecting, for %v at most\n", all.Telling, cli.Plural(all.Telling, "outcome"), control.TellsFor)
	}
	if all.Unsure > 0 {
		fmt.Fprintf(w, "  relay sent %d %s once, without checking that the caller got it: too many were being sent\n", all.Unsure, cli.Plural(all.Unsure, "outcome"))
	}
	if all.Again > 0 {
		fmt.Fprintf(w, "  relay asked %d %s again: the caller may be reconnecting, or too many callers do not answer\n", all.Again, cli.Plural(all.Again, "question"))
	}
	if all.Silent > 0 {
		fmt.Fprintf(w, "  %d questions were not answered in time\n", all.Silent)
	}
	if all.Refused > 0 {
		fmt.Fprintf(w, "  relay ignored %d %s of callers: the log says why; caller.reply and caller.interest say what is permitted\n", all.Refused, cli.Plural(int(all.Refused), "header"))
	}
}
