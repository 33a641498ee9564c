package config

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/relaymq/relay/consumer/handler"
)

// natsContext is a file of the nats command that says how a server is reached: what of it relay knows, and what it does
// not, so that it can say so.
type natsContext struct {
	URL         string `json:"url"`
	User        string `json:"user"`
	Password    string `json:"password"`
	Token       string `json:"token"`
	Creds       string `json:"creds"`
	NKey        string `json:"nkey"`
	CA          string `json:"ca"`
	Cert        string `json:"cert"`
	Key         string `json:"key"`
	InboxPrefix string `json:"inbox_prefix"`
	Domain      string `json:"jetstream_domain"`

	NSC       string `json:"nsc"`
	APIPrefix string `json:"jetstream_api_prefix"`
	Proxy     string `json:"socks_proxy"`
	JWT       string `json:"user_jwt"`
	TLSFirst  bool   `json:"tls_first"`
}

// unknown names what the context asks for and relay cannot do.
func (n natsContext) unknown() (keys []string) {
	for _, k := range []struct {
		name string
		set  bool
	}{{"nsc", n.NSC != ""}, {"jetstream_api_prefix", n.APIPrefix != ""}, {"socks_proxy", n.Proxy != ""}, {"user_jwt", n.JWT != ""}, {"tls_first", n.TLSFirst}} {
		if k.set {
			keys = append(keys, k.name)
		}
	}
	return keys
}

// selectedContext is a name that stands for the context that `nats context select` chose.
const selectedContext = "-"

// contextDir is where the nats command keeps its contexts: on every system below ~/.config.
func contextDir() (string, error) {
	if dir := os.Getenv("XDG_CONFIG_HOME"); dir != "" {
		return filepath.Join(dir, "nats"), nil
	}
	home, err := os.UserHomeDir()
	return filepath.Join(home, ".config", "nats"), err
}

// Contexts are the names of the contexts of the nats command, sorted.
func Contexts() (names []string) {
	dir, err := contextDir()
	if err != nil {
		return nil
	}
	files, _ := filepath.Glob(filepath.Join(dir, "context", "*.json"))
	for _, f := range files {
		names = append(names, strings.TrimSuffix(filepath.Base(f), ".json"))
	}
	slices.Sort(names)
	return names
}

// readContext finds a context by its name. Its errors repeat nothing of the file.
func readContext(name string) (n natsContext, file string, err error) {
	dir, err := contextDir()
	if err != nil {
		return n, "", err
	}
	if name == selectedContext {
		b, err := readCapped(filepath.Join(dir, "context.txt"), maxSecret)
		if name = strings.TrimSpace(string(b)); err != nil || name == "" {
			return n, "", errors.New("no context is selected: select one with nats context select NAME")
		}
	}
	if name != filepath.Base(name) || name == "." || name == ".." {
		return n, "", fmt.Errorf("%q is not the name of a context", name)
	}
	file = filepath.Join(dir, "context", name+".json")
	data, err := readCapped(file, maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return n, file, fmt.Errorf("context %s does not exist%s", name, didYouMean(name, Contexts()))
	}
	if err != nil {
		return n, file, fmt.Errorf("%s: %w", file, err)
	}
	if err := json.Unmarshal(data, &n); err != nil {
		return n, file, fmt.Errorf("%s: does not hold a context in JSON", file)
	}
	return n, file, nil
}

// didYouMean names what is close to name, or else what there is.
func didYouMean(name string, known []string) string {
	for _, k := range known {
		if distance(strings.ToLower(name), strings.ToLower(k)) <= max(1, len(k)/3) {
			return fmt.Sprintf(", did you mean %s?", k)
		}
	}
	if len(known) == 0 {
		return ", and there are no other contexts"
	}
	return fmt.Sprintf("; there are %s", strings.Join(known, ", "))
}

// context lays a context of the nats command under the keys of nats. One of the --context flag replaces what file and
// environment say of the server; one of nats.context gives what they leave out. Authentication and TLS are each taken as
// a whole.
func (c *collector) context(n *NATS, flag string) {
	at, key, name := c.at("nats.context"), "nats.context", n.Context
	if flag != "" {
		at, key, name = origin{file: "--context"}, "", flag
		c.forget(n)
	}
	if name == "" {
		return
	}
	n.Context = name
	from, file, err := readContext(name)
	if err == nil {
		if keys := from.unknown(); len(keys) > 0 {
			err = fmt.Errorf("context %s has %s, which relay does not support", name, strings.Join(keys, " and "))
		}
	}
	if err == nil {
		err = from.splitURL()
	}
	if err != nil {
		c.refuse(at, key, "%v", err)
		return
	}
	c.names("nats.context", file)
	if from.Password+from.Token != "" {
		c.secretFileMode(at, key, file)
	}
	if len(n.URL) == 0 {
		_ = n.URL.UnmarshalText([]byte(cmp.Or(from.URL, "nats://127.0.0.1:4222")))
	}
	n.Domain, n.InboxPrefix = cmp.Or(n.Domain, from.Domain), cmp.Or(n.InboxPrefix, from.InboxPrefix)
	if n.Creds+n.NKey+n.User.Reveal()+n.Password.Reveal()+n.Token.Reveal() == "" {
		// The nats command takes the first of these.
		switch {
		case from.User != "":
			n.User, n.Password = handler.SecretText(from.User), handler.SecretText(from.Password)
		case from.Creds != "":
			n.Creds = atHome(from.Creds)
		case from.NKey != "":
			n.NKey = atHome(from.NKey)
		case from.Token != "":
			n.Token = handler.SecretText(from.Token)
		}
	}
	if n.TLS == (TLS{}) {
		n.TLS = TLS{CA: atHome(from.CA), Cert: atHome(from.Cert), Key: atHome(from.Key)}
	}
}

// forget empties the keys that say which server, unless a flag set them: --context with --server is both.
func (c *collector) forget(n *NATS) {
	empty := func(key string, value *string) {
		if !strings.HasPrefix(c.origins[key].file, setFlag) {
			*value = ""
		}
	}
	if !strings.HasPrefix(c.origins["nats.url"].file, setFlag) {
		n.URL = nil
	}
	empty("nats.creds", &n.Creds)
	empty("nats.nkey", &n.NKey)
	empty("nats.domain", &n.Domain)
	empty("nats.inbox_prefix", &n.InboxPrefix)
	n.User, n.Password, n.Token, n.TLS = Secret{}, Secret{}, Secret{}, TLS{}
}

// splitURL takes user and password, or a token, out of the addresses, where the nats command permits them.
func (n *natsContext) splitURL() error {
	var clean []string
	for s := range strings.SplitSeq(n.URL, ",") {
		if s = strings.TrimSpace(s); !strings.Contains(s, "@") {
			clean = append(clean, s)
			continue
		}
		if !strings.Contains(s, "://") {
			s = "nats://" + s
		}
		u, err := url.Parse(s)
		if err != nil {
			return errors.New("the url of the context is not a valid URL")
		}
		if password, ok := u.User.Password(); ok {
			n.User, n.Password = u.User.Username(), password
		} else {
			n.Token = u.User.Username()
		}
		u.User = nil
		clean = append(clean, u.String())
	}
	n.URL = strings.Join(clean, ",")
	return nil
}

func atHome(path string) string {
	if rest, ok := strings.CutPrefix(path, "~/"); ok {
		if home, err := os.UserHomeDir(); err == nil {
			return filepath.Join(home, rest)
		}
	}
	return path
}
