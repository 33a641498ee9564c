package publish

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	calls "github.com/relaymq/relay/client"
	"github.com/relaymq/relay/cmd/relay/internal/access"
	"github.com/relaymq/relay/cmd/relay/internal/cli"
	"github.com/relaymq/relay/internal/subject"
)

func newCall(o *cli.Options) *cobra.Command {
	var headers []string
	var timeout time.Duration
	var asJSON bool
	c := &cobra.Command{
		Use: "call SUBJECT [BODY|-]", Short: "publish a message and wait for its result", Args: cli.Args(cobra.RangeArgs(1, 2)),
		Long: `Call publishes one message, as pub does, and waits until its handler is through with it, also after retries. It
prints the result; without one it says why, and exits with 1. Without BODY, or with -, the body is read from standard input.

While call waits it answers relay's question whether the message is still wanted. When it ends, by Ctrl-C, by --timeout or
because it was killed, the answer is no: what has not started is not started any more. The route must permit that:
caller: {reply: [_INBOX.>], interest: [_INBOX.>]}`,
		Example: `  relay call orders.eu.quote '{"id":1}'
  relay call orders.eu.quote - --timeout 2m --json < order.json`,
		RunE: func(c *cobra.Command, a []string) error {
			if err := subject.ValidateLiteral(a[0]); err != nil {
				return fmt.Errorf("%w: subject: %w", cli.ErrUsage, err)
			}
			if timeout <= 0 {
				return fmt.Errorf("%w: --timeout must be above 0 (got %v)", cli.ErrUsage, timeout)
			}
			m, err := messageOf(c.InOrStdin(), a, headers)
			if err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(c.Context(), os.Interrupt)
			defer stop()
			ctx, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()
			cl, err := o.Open(ctx, access.Publisher)
			if err != nil {
				return err
			}
			defer cl.Close()
			said := false
			cc, err := calls.New(cl.Conn.Conn, calls.OnWait(func(subject string, why error, _ time.Duration) {
				if !said {
					fmt.Fprintf(c.ErrOrStderr(), "not stored yet; retrying: %s\n", cli.Printable(why.Error()))
				}
				said = true
			}))
			if err != nil {
				return err
			}
			defer cc.Close()
			// Answers to a relay may be refused: its route may start what nobody answers for.
			var result *calls.Result
			err = cl.Permitted(ctx, access.Publisher, func(ctx context.Context) (err error) {
				result, err = cc.Do(ctx, m)
				return err
			}, cl.Config.ServiceInbox())
			if asJSON {
				return printCall(c.OutOrStdout(), result, err)
			}
			if err != nil {
				return callError(err, timeout)
			}
			return printResult(c.OutOrStdout(), c.ErrOrStderr(), result)
		},
	}
	f := c.Flags()
	f.StringArrayVarP(&headers, "header", "H", nil, "header as 'Name: value'; may be given more than once")
	f.DurationVar(&timeout, "timeout", 30*time.Second, "give up after this long")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// messageOf is the message of a subject, a body or -, and headers.
func messageOf(stdin io.Reader, a, headers []string) (*nats.Msg, error) {
	m := nats.NewMsg(a[0])
	for _, h := range headers {
		name, value, ok := strings.Cut(h, ":")
		name, value = strings.TrimSpace(name), strings.TrimSpace(value)
		if !ok || name == "" || strings.ContainsAny(h, "\r\n") {
			return nil, fmt.Errorf("%w: header %q: must be 'Name: value'", cli.ErrUsage, h)
		}
		m.Header.Add(name, value)
	}
	if len(a) == 2 && a[1] != "-" {
		m.Data = []byte(a[1])
		return m, nil
	}
	body, err := io.ReadAll(stdin)
	m.Data = body
	return m, err
}

// callError says what may have kept the result away.
func callError(err error, timeout time.Duration) error {
	switch {
	case errors.Is(err, calls.ErrNoStream), errors.Is(err, calls.ErrFull):
		return err
	case errors.Is(err, calls.ErrTimedOut):
		return fmt.Errorf("no result within %v (does the route permit it, with caller.reply and caller.interest? relay status says what the route does)", timeout)
	case errors.Is(err, context.Canceled):
		return errors.New("interrupted: relay was told that the message is not wanted any more")
	}
	return err
}

// printResult writes the bytes as they are, but not at a terminal, which they might command.
func printResult(out, notes io.Writer, r *calls.Result) error {
	if r.Truncated {
		fmt.Fprintf(notes, "the result is longer; these are its first %d bytes (caller.max_result)\n", len(r.Data))
	}
	if s, ok := out.(*cli.Screen); ok && term.IsTerminal(int(s.Fd())) {
		if len(r.Data) > 0 {
			_, err := fmt.Fprintln(out, cli.BodyText(r.Data))
			return err
		}
		return nil
	}
	_, err := out.Write(r.Data)
	return err
}

// called is a call as JSON.
type called struct {
	Outcome    string          `json:"outcome"` // done, dead, dropped, expired, forgotten, timed_out or failed
	ID         string          `json:"id,omitempty"`
	Attempts   int             `json:"attempts,omitempty"`
	Error      string          `json:"error,omitempty"`
	Result     json.RawMessage `json:"result,omitempty"`      // when it is JSON
	Text       *string         `json:"result_text,omitempty"` // when it is other text
	Base64     []byte          `json:"result_base64,omitempty"`
	Truncated  bool            `json:"result_truncated,omitempty"`
	ResultType string          `json:"result_type,omitempty"`
}

// printCall prints what came of a call. A call without a result is an error all the same.
func printCall(w io.Writer, r *calls.Result, err error) error {
	out := called{Outcome: "done"}
	var told *calls.OutcomeError
	switch {
	case errors.As(err, &told):
		out.Outcome, out.ID, out.Attempts, out.Error = told.Outcome, told.ID, told.Attempts, told.Text
	case errors.Is(err, calls.ErrTimedOut):
		out.Outcome, out.Error = "timed_out", err.Error()
	case err != nil:
		out.Outcome, out.Error = "failed", err.Error()
	default:
		out.ID, out.Attempts, out.Truncated, out.ResultType = r.ID, r.Attempts, r.Truncated, r.Header.Get("Content-Type")
		switch text := string(r.Data); {
		case len(r.Data) == 0:
		case json.Valid(r.Data):
			out.Result = r.Data
		case utf8.Valid(r.Data):
			out.Text = &text
		default:
			out.Base64 = r.Data
		}
	}
	if perr := cli.PrintJSON(w, out); perr != nil {
		return perr
	}
	if err != nil {
		return cli.ErrSaid
	}
	return nil
}
