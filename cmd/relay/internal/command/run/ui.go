package run

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"github.com/relaymq/relay/cmd/relay/internal/access"
	"github.com/relaymq/relay/cmd/relay/internal/cli"
	"github.com/relaymq/relay/cmd/relay/internal/config"
	"github.com/relaymq/relay/cmd/relay/internal/console"
	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/permission"
)

// Whoever may publish on these subjects gets a session of the console. They belong to the two families of seeing and acting.
func codeSubject(service string, role console.Role) string {
	if role == console.Operate {
		return service + ".ctl.act.console"
	}
	return service + ".ctl.view.console"
}

// accessOf is the role on the NATS server of whoever asks.
func accessOf(role console.Role) string {
	if role == console.Operate {
		return access.Operator
	}
	return access.Viewer
}

type codeRequest struct {
	By   string `json:"by"`
	Seal []byte `json:"seal"` // see console.Seal
}

// codeAnswer is what an instance answers.
type codeAnswer struct {
	Instance string `json:"instance"`
	Host     string `json:"host"`
	URL      string `json:"url,omitempty"` // with the code; what relay ui prints has the key, too
	Error    string `json:"error,omitempty"`
}

// answerCodes gives codes for the console to whoever may ask for them. It returns how to stop.
func (s *service) answerCodes(instance string) (stop func(), err error) {
	host, _ := os.Hostname()
	var subs []*nats.Subscription
	stop = func() {
		for _, sub := range subs {
			_ = sub.Unsubscribe()
		}
	}
	for _, role := range []console.Role{console.View, console.Operate} {
		sub, err := s.conn.Subscribe(codeSubject(s.cfg.Service, role), func(m *nats.Msg) {
			var q codeRequest
			user, ok := s.cfg.InboxOf(accessOf(role), m.Reply)
			if !ok || json.Unmarshal(m.Data, &q) != nil || q.By == "" || len(q.By) > 256 {
				return
			}
			if user != config.Nobody { // nobody else gets the answer
				q.By = fmt.Sprintf("%s (NATS user %s)", q.By, user)
			}
			a := codeAnswer{Instance: instance, Host: host}
			code, err := "", errOlderUI
			if len(q.Seal) == len(console.Seal{}) {
				code, err = s.console.Code(role, q.By, console.Seal(q.Seal))
			}
			if err != nil {
				a.Error = err.Error()
				s.log.Warn("no code for the console was given", "by", q.By, "role", role, "error", err)
			} else {
				a.URL = "http://" + s.consoleAddr + "/login#" + code
				s.log.Info("a code for the console is given", "by", q.By, "role", role)
			}
			b, _ := json.Marshal(a)
			_ = m.Respond(b)
		})
		if err != nil {
			stop()
			return nil, err
		}
		subs = append(subs, sub)
	}
	return stop, nil
}

// errOlderUI is for a question without a seal.
var errOlderUI = errors.New("this relay ui is older than the instance: use relay ui of the version of the instance")

func newUI(o *cli.Options) *cobra.Command {
	var role, instance, as string
	var asJSON bool
	c := &cobra.Command{
		Use: "ui", Short: "a link to the console, for a browser", Args: cli.Args(cobra.NoArgs),
		Long: `Ui asks the running instances for links to their console and prints them. A link holds a code that works once, within
a minute. NATS permissions decide whether you may view or operate: relay ui asks for a code to operate on <service>.ctl.act.console,
and for a code to view on <service>.ctl.view.console. The console of another host is reached through a tunnel, such as ssh -L.`,
		Example: "  relay ui\n  relay ui --role view",
		RunE: func(c *cobra.Command, _ []string) error {
			if role != string(console.View) && role != string(console.Operate) {
				return fmt.Errorf("%w: --role %q: must be view or operate", cli.ErrUsage, role)
			}
			return o.WithClientAs(c, accessOf(console.Role(role)), func(ctx context.Context, cl *cli.Client) error {
				list, err := askCodes(ctx, cl, console.Role(role), cli.Or(as, cli.Caller()))
				if err != nil {
					return err
				}
				if instance != "" {
					kept := list[:0]
					for _, a := range list {
						if a.Instance == instance {
							kept = append(kept, a)
						}
					}
					if list = kept; len(list) == 0 {
						return fmt.Errorf("no instance %s answers with a console", cli.Printable(instance))
					}
				}
				if asJSON {
					return cli.PrintJSON(c.OutOrStdout(), list)
				}
				return printCodes(c, list)
			})
		},
	}
	c.Flags().StringVar(&role, "role", string(console.Operate), "what you want to do: view or operate")
	c.Flags().StringVar(&instance, "instance", "", "only the console of this instance")
	c.Flags().StringVar(&as, "as", "", "who you are, for the log and what is audited (default user@host)")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// askCodes asks all instances. Whoever may subscribe there can answer: only what a console would say is taken.
func askCodes(ctx context.Context, c *cli.Client, role console.Role, by string) (list []codeAnswer, err error) {
	key, seal := console.NewKey()
	request, err := json.Marshal(codeRequest{by, seal[:]})
	if err != nil {
		return nil, err
	}
	sub, err := c.Conn.SubscribeSync(c.Conn.NewInbox())
	if err != nil {
		return nil, err
	}
	defer func() { _ = sub.Unsubscribe() }()
	// The server tells of a refusal out of band, and nobody answers.
	ctx, stop := permission.Watch(ctx, c.Conn.Conn)
	defer stop()
	if err := c.Conn.PublishRequest(codeSubject(c.Config.Service, role), sub.Subject, request); err != nil {
		return nil, err
	}
	for wait := 2 * time.Second; len(list) < 100; wait = 300 * time.Millisecond {
		next, cancel := context.WithTimeout(ctx, wait)
		m, err := sub.NextMsgWithContext(next)
		cancel()
		var a codeAnswer
		switch {
		case ctx.Err() != nil:
			err := permission.Cause(ctx, ctx.Err())
			if v := (*permission.Error)(nil); errors.As(err, &v) {
				return nil, fmt.Errorf("%w (relay nats permissions --for %s prints all that such a user needs; relay ui --role view needs less than --role operate)", err, accessOf(role))
			}
			return nil, err
		case errors.Is(err, nats.ErrNoResponders), err != nil && next.Err() != nil:
			if len(list) == 0 {
				return nil, fmt.Errorf("%w with a console: check that relay run runs, with service %s, and that admin.listen and admin.ui are not off", control.ErrNobody, c.Config.Service)
			}
			return list, nil
		case err != nil:
			return nil, err
		case json.Unmarshal(m.Data, &a) != nil || a.Error == "" && !localURL(a.URL):
			continue
		}
		if a.URL != "" {
			a.URL = console.WithKey(a.URL, key)
		}
		list = append(list, a)
	}
	return list, nil
}

// localURL tells whether a link is to a console, which listens on loopback.
func localURL(u string) bool {
	rest, ok := strings.CutPrefix(u, "http://")
	addr, code, hasPath := strings.Cut(rest, "/login#")
	host, _, err := net.SplitHostPort(addr)
	ip := net.ParseIP(host)
	return ok && hasPath && err == nil && ip != nil && ip.IsLoopback() && strings.Trim(code, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") == ""
}

func printCodes(c *cobra.Command, list []codeAnswer) error {
	w, good := c.OutOrStdout(), 0
	here, _ := os.Hostname()
	for _, a := range list {
		if a.Error != "" {
			fmt.Fprintf(c.ErrOrStderr(), "relay: %s: %s\n", cli.Printable(a.Instance), cli.Printable(a.Error))
			continue
		}
		good++
		if a.Host != here {
			addr := strings.TrimPrefix(strings.SplitN(a.URL, "/login", 2)[0], "http://")
			_, port, _ := net.SplitHostPort(addr)
			fmt.Fprintf(w, "%s is on %s: ssh -L %s:%s %s, then\n", cli.Printable(a.Instance), cli.Printable(a.Host), port, addr, cli.Printable(a.Host))
		} else if len(list) > 1 {
			fmt.Fprintf(w, "%s\n", cli.Printable(a.Instance))
		}
		fmt.Fprintln(w, a.URL)
	}
	if good == 0 {
		return errors.New("no console gives you a session")
	}
	return nil
}
