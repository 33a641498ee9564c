package program

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"

	"github.com/relaymq/relay/ack"
	"github.com/relaymq/relay/cmd/relay/internal/cli"
)

func newRetries(o *cli.Options) *cobra.Command {
	c := &cobra.Command{
		Use: "retries", Short: "look at the messages that failed and wait for their retry, hasten and discard them",
		Long: `A message that failed waits in one of two places: in its durable, as most do, or parked in the retry stream, as long waits
and large numbers do. Both are listed; parked ones can be made due now, or become dead letters.

A message that waits in its durable comes when it is due: only the instances can reach it. relay resume ROUTE ends the waits of a
route and of its keys.`,
		Args: cli.Args(cobra.NoArgs), RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newRetriesList(o), newRetriesShow(o), newRetriesNow(o), newRetriesDiscard(o))
	return c
}

// retry is a message that waits, as --json prints it.
type retry struct {
	ID       string     `json:"id"`
	Where    string     `json:"where"` // durable or parked
	Routes   []string   `json:"routes"`
	Durable  string     `json:"durable"`
	Subject  string     `json:"subject,omitempty"` // of a parked one; the other's is in its stream
	Attempts int        `json:"attempts"`
	First    *time.Time `json:"first_failure,omitempty"`
	Last     *time.Time `json:"last_failure,omitempty"`
	Due      *time.Time `json:"due,omitempty"`
	Error    string     `json:"error,omitempty"`
	Dead     string     `json:"dead,omitempty"` // it is to be a dead letter that could not be stored yet
	Fault    string     `json:"fault,omitempty"`

	stream   string
	sequence uint64
	made     time.Time // of one in its durable: when that was made
	parked   *ack.Parked
}

const (
	inDurable = "durable"
	isParked  = "parked"
)

func retryID(stream string, seq uint64) string { return stream + "/" + strconv.FormatUint(seq, 10) }

func parseRetryID(s string) (stream string, seq uint64, err error) {
	i := strings.LastIndexByte(s, '/')
	if i > 0 {
		seq, err = strconv.ParseUint(s[i+1:], 10, 64)
	}
	if i <= 0 || err != nil || seq == 0 {
		return "", 0, fmt.Errorf("%w: %q names no message: write its stream and sequence, as in ORDERS/17 (relay retries ls shows them)", cli.ErrUsage, s)
	}
	return s[:i], seq, nil
}

// retries reads what waits.
type retries struct {
	cl     *cli.Client
	stream *ack.RetryStream    // nil when relay never ran here
	routes map[string][]string // of each durable
}

func openRetries(ctx context.Context, cl *cli.Client) (*retries, error) {
	known, err := knownRoutes(ctx, cl)
	if err != nil {
		return nil, err
	}
	r := &retries{cl: cl, routes: make(map[string][]string)}
	for name, info := range known.known {
		durable := cli.Or(info.durable, name)
		r.routes[durable] = append(r.routes[durable], name)
		slices.Sort(r.routes[durable])
	}
	service := cl.Config.Service
	r.stream, err = ack.AttachRetryStream(ctx, cl.JS, service, strings.ToUpper(service)+"_RETRY")
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		err = nil
	}
	return r, err
}

// each calls f for what waits, of a route or of all, until f returns false.
func (r *retries) each(ctx context.Context, route string, f func(retry) bool) error {
	more := true
	bucket := strings.ToUpper(r.cl.Config.Service) + "_ATTEMPTS"
	err := ack.ListWaiting(ctx, r.cl.JS, bucket, "", "", func(w ack.Waiting) bool {
		names := r.routes[w.Durable]
		if route != "" && w.Durable != route && !slices.Contains(names, route) {
			return true
		}
		m := retry{
			ID: retryID(w.Stream, w.Sequence), Where: inDurable, Routes: names, Durable: w.Durable, Attempts: w.Attempts, First: cli.KnownTime(w.FirstFailure),
			Last: cli.KnownTime(w.LastFailure), Due: cli.KnownTime(w.Due), Error: w.LastError, Dead: w.Dead, stream: w.Stream, sequence: w.Sequence, made: w.Made,
		}
		if w.Err != nil {
			m.Fault = w.Err.Error()
		}
		more = f(m)
		return more
	})
	if err != nil || !more {
		return err
	}
	return r.eachParked(ctx, route, f)
}

func (r *retries) eachParked(ctx context.Context, route string, f func(retry) bool) error {
	if r.stream == nil {
		return nil
	}
	return r.stream.ListParked(ctx, route, func(p ack.Parked) bool {
		m := retry{
			ID: retryID(p.Stream, p.Sequence), Where: isParked, Routes: []string{p.Route}, Durable: p.Consumer, Subject: p.Subject, Attempts: p.Attempts,
			First: cli.KnownTime(p.FirstFailure), Last: cli.KnownTime(p.LastFailure), Due: cli.KnownTime(p.Due), Error: p.LastError, stream: p.Stream, sequence: p.Sequence, parked: &p,
		}
		if p.Err != nil {
			m = retry{ID: fmt.Sprintf("(number %d of the retry stream)", p.Number), Where: isParked, Fault: p.Err.Error(), parked: &p}
		}
		return f(m)
	})
}

func newRetriesList(o *cli.Options) *cobra.Command {
	var route string
	var limit int
	var asJSON, all bool
	c := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "list what waits for its retry", Args: cli.Args(cobra.NoArgs),
		Example: "  relay retries ls --route billing\n  relay retries ls --all --json",
		RunE: func(c *cobra.Command, _ []string) error {
			if limit < 1 {
				return fmt.Errorf("%w: --limit %d: must be above 0", cli.ErrUsage, limit)
			}
			return o.WithClient(c, func(ctx context.Context, cl *cli.Client) error {
				r, err := openRetries(ctx, cl)
				if err != nil {
					return err
				}
				return r.list(ctx, c.OutOrStdout(), route, limit, all, asJSON)
			})
		},
	}
	c.Flags().StringVar(&route, "route", "", "only this route's")
	c.Flags().IntVar(&limit, "limit", cli.PageSize, "at most this many")
	c.Flags().BoolVar(&all, "all", false, "all of them")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON lines")
	return c
}

func (r *retries) list(ctx context.Context, out io.Writer, route string, limit int, all, asJSON bool) error {
	head := []string{"MESSAGE", "WHERE", "ROUTE", "SUBJECT", "ATTEMPTS", "LAST FAILURE", "DUE", "ERROR"}
	rows := [][]string{head}
	n, more := 0, false
	var failed error
	err := r.each(ctx, route, func(m retry) bool {
		if n == limit && !all {
			more = true
			return false
		}
		n++
		if asJSON {
			failed = cli.PrintLine(out, m)
			return failed == nil
		}
		why := cli.Or(m.Fault, m.Error)
		if m.Dead != "" {
			why = "to be dead-lettered (" + m.Dead + "): " + why
		}
		rows = append(rows, []string{m.ID, m.Where, cli.Or(strings.Join(m.Routes, ", "), cli.Or(m.Durable, "-")), cli.Or(m.Subject, "-"), strconv.Itoa(m.Attempts),
			cli.Whenever(m.Last), cli.Whenever(m.Due), why})
		if len(rows) >= cli.FlushRows {
			cli.Table(out, rows)
			rows = rows[:0]
		}
		return true
	})
	switch {
	case err != nil || failed != nil:
		return errors.Join(err, failed)
	case asJSON:
		return nil
	case n == 0:
		fmt.Fprintln(out, "nothing waits for its retry")
		return nil
	}
	cli.Table(out, rows)
	if more {
		fmt.Fprintf(out, "\nThere are more: --limit or --all shows them.\n")
	}
	return nil
}

func newRetriesShow(o *cli.Options) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "show MESSAGE", Short: "show one of them, with its body", Args: cli.Args(cobra.ExactArgs(1)), Example: "  relay retries show ORDERS/17",
		RunE: func(c *cobra.Command, a []string) error {
			stream, seq, err := parseRetryID(a[0])
			if err != nil {
				return err
			}
			return o.WithClient(c, func(ctx context.Context, cl *cli.Client) error {
				r, err := openRetries(ctx, cl)
				if err != nil {
					return err
				}
				found := 0
				err = r.each(ctx, "", func(m retry) bool {
					if m.stream != stream || m.sequence != seq {
						return true
					}
					if found++; asJSON {
						err = cli.PrintJSON(c.OutOrStdout(), m)
					} else {
						r.show(ctx, c.OutOrStdout(), m, found > 1)
					}
					return true
				})
				if err == nil && found == 0 {
					err = fmt.Errorf("%s does not wait for a retry (relay retries ls shows what does)", a[0])
				}
				return err
			})
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON, without the body")
	return c
}

// show prints a message for a person. The body of one in its durable is in its stream.
func (r *retries) show(ctx context.Context, w io.Writer, m retry, another bool) {
	if another {
		fmt.Fprintln(w)
	}
	rows := [][]string{
		{"message", m.ID}, {"waits", "in durable " + m.Durable}, {"route", cli.Or(strings.Join(m.Routes, ", "), "-")},
		{"attempts", fmt.Sprintf("%d, first failure %s, last %s", m.Attempts, cli.Whenever(m.First), cli.Whenever(m.Last))}, {"due", cli.Whenever(m.Due)}, {"error", cli.Or(m.Error, "-")},
	}
	var body []byte
	if m.parked != nil {
		rows[1][1], body = "parked in the retry stream, number "+strconv.FormatUint(m.parked.Number, 10), m.parked.Data
	} else if s, err := r.cl.JS.Stream(ctx, m.stream); err == nil {
		if msg, err := s.GetMsg(ctx, m.sequence); err == nil {
			m.Subject, body = msg.Subject, msg.Data
		}
	}
	rows = append(rows, []string{"subject", cli.Or(m.Subject, "-")})
	cli.Table(w, rows)
	fmt.Fprintf(w, "\nbody, %d bytes\n%s\n", len(body), cli.BodyText(body))
}
