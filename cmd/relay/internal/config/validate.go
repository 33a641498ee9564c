package config

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/relaymq/relay/internal/fleet"
	"github.com/relaymq/relay/internal/subject"
)

// off is another way to write an empty address.
const off = "off"

var (
	serviceRule = regexp.MustCompile(`^[a-z0-9_-]{1,32}$`)
	domainRule  = regexp.MustCompile(`^[^\s.*>/\\]{1,64}$`)
	hostRule    = regexp.MustCompile(`^[\pL\pN_]([\pL\pN._-]*[\pL\pN._])?$`)
	inboxRule   = regexp.MustCompile(`^[^\s.*>$[:cntrl:]]+(\.[^\s.*>[:cntrl:]]+)*$`)
	limitRule   = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)
	streamRule  = regexp.MustCompile(`^[^\s.*>/\\[:cntrl:]]{1,255}$`)
)

// validate looks at the values, section by section, and then at routes and streams together.
func (c *collector) validate(cfg *Config) {
	if !serviceRule.MatchString(cfg.Service) {
		c.fault("service", "must be 1 to 32 lower-case letters, digits, - or _ (got %q)", cfg.Service)
	}
	c.nats(cfg.NATS)
	for i, s := range cfg.Streams {
		c.stream(fmt.Sprintf("streams[%d]", i), s)
	}
	c.schedules(cfg)
	c.limits(cfg)
	if cfg.Later.MaxBytes < 1<<20 {
		c.fault("later.max_bytes", "must be at least 1MiB (got %v)", cfg.Later.MaxBytes)
	}
	if cfg.Later.MaxMsgs < 1 {
		c.fault("later.max_msgs", "must be at least 1 (got %d)", cfg.Later.MaxMsgs)
	}
	if cfg.Later.MaxAge < time.Minute {
		c.fault("later.max_age", "must be at least 1m (got %v)", cfg.Later.MaxAge)
	}
	if cfg.Parked.MaxBytes < 1<<20 {
		c.fault("parked.max_bytes", "must be at least 1MiB (got %v)", cfg.Parked.MaxBytes)
	}
	if cfg.Parked.MaxMsgs < 1 {
		c.fault("parked.max_msgs", "must be at least 1 (got %d)", cfg.Parked.MaxMsgs)
	}
	if cfg.Parked.MaxAge < time.Minute {
		c.fault("parked.max_age", "must be at least 1m (got %v)", cfg.Parked.MaxAge)
	}
	c.notNegative("dlq.max_age", cfg.DLQ.MaxAge)
	if cfg.DLQ.MaxMsgs < 0 {
		c.fault("dlq.max_msgs", "must not be negative: 0 means no bound (got %d)", cfg.DLQ.MaxMsgs)
	}
	c.oneOf("dlq.on_full", "dlq.on_full", cfg.DLQ.OnFull)
	if cfg.DLQ.OnFull == OnFullDropOldest && cfg.DLQ.MaxBytes == 0 && cfg.DLQ.MaxMsgs == 0 {
		c.fault("dlq.on_full", "drop_oldest needs dlq.max_bytes or dlq.max_msgs: without a bound the stream is never full")
	}
	if cfg.Events.MaxAge < time.Minute {
		c.fault("events.max_age", "must be at least 1m (got %v)", cfg.Events.MaxAge)
	}
	if cfg.Events.MaxBytes < 1<<20 {
		c.fault("events.max_bytes", "must be at least 1MiB (got %v)", cfg.Events.MaxBytes)
	}
	if cfg.Events.MaxMsgs < 1 {
		c.fault("events.max_msgs", "must be at least 1 (got %d)", cfg.Events.MaxMsgs)
	}
	if cfg.Archive.MaxAge < time.Minute {
		c.fault("archive.max_age", "must be at least 1m (got %v)", cfg.Archive.MaxAge)
	}
	if cfg.Archive.MaxBytes < 1<<20 {
		c.fault("archive.max_bytes", "must be at least 1MiB (got %v)", cfg.Archive.MaxBytes)
	}
	if cfg.Archive.MaxMsgs < 0 {
		c.fault("archive.max_msgs", "must not be negative: 0 means no bound (got %d)", cfg.Archive.MaxMsgs)
	}
	if cfg.Archive.Results && !cfg.Archive.Outcomes {
		c.fault("archive.results", "needs archive.outcomes: true, because a result is stored with the outcome of its message")
	}
	if l := cfg.Fleet.Lease; l < fleet.MinLease || l%time.Second != 0 {
		c.fault("fleet.lease", "must be whole seconds, at least %v (got %v)", fleet.MinLease, l)
	}
	c.notNegative("drain", cfg.Drain)
	if w := cfg.Reload.Watch; w < 0 || w > 0 && w < time.Second {
		c.fault("reload.watch", "must be at least 1s, or 0s for never (got %v)", w)
	}
	if cfg.Ready.Stalled < time.Second {
		c.fault("ready.stalled", "must be at least 1s (got %v)", cfg.Ready.Stalled)
	}
	if cfg.Admin.Listen != "" && cfg.Admin.Listen != off {
		c.loopback("admin.listen", cfg.Admin.Listen)
	}
	c.oneOf("admin.ui", "admin.ui", cfg.Admin.UI)
	if cfg.Admin.Probes != "" && cfg.Admin.Probes != off {
		c.hostPort("admin.probes", cfg.Admin.Probes)
		if cfg.Admin.Probes == cfg.Admin.Listen {
			c.fault("admin.probes", "must not be the address of admin.listen (got %q)", cfg.Admin.Probes)
		}
	}
	c.oneOf("log.level", "log.level", cfg.Log.Level)
	c.oneOf("log.format", "log.format", cfg.Log.Format)
	if cfg.Log.Burst < 0 {
		c.fault("log.burst", "must not be negative: 0 means any number (got %d)", cfg.Log.Burst)
	}
	c.routes(cfg)
}

func (c *collector) schedules(cfg *Config) {
	names := map[string]int{}
	for i, s := range cfg.Schedules {
		key := fmt.Sprintf("schedules[%d]", i)
		s = s.WithDefaults()
		cfg.Schedules[i] = s
		if before, twice := names[s.Name]; twice {
			c.fault(key+".name", "%q is already the name of schedules[%d]: give each schedule its own name", s.Name, before)
		}
		names[s.Name] = i
		s.Validate(cfg.Service, func(field string, err error) { c.fault(key+"."+field, "%v", err) }, cfg.OwnSubjects()...)
		c.oneOf(key+".catch_up", "schedules.catch_up", s.CatchUp)
	}
}

func (c *collector) limits(cfg *Config) {
	for name, l := range cfg.Limits {
		key := "limits." + name
		if !limitRule.MatchString(name) {
			c.fault(key, "must be 1 to 64 letters, digits, - or _")
		}
		c.faultsOf(key, l.Validate())
		cfg.Limits[name] = l.WithDefaults()
		if !slices.ContainsFunc(cfg.Routes, func(r Route) bool { return slices.Contains(r.Limits, name) }) {
			c.note(key, "no route uses this limit: list it under limits of a route, or remove it")
		}
	}
}

func (c *collector) notNegative(key string, d time.Duration) {
	if d < 0 {
		c.fault(key, "must not be negative (got %v)", d)
	}
}

// oneOf compares with the values that docs lists for the key.
func (c *collector) oneOf(key, doc, got string) {
	if known := c.docs[doc].values; !slices.Contains(known, got) {
		c.fault(key, "must be %s (got %q)", orList(known), got)
	}
}

func orList(words []string) string {
	return listed(words, "or")
}

// listed is "a, b and c", with that last word between.
func listed(words []string, last string) string {
	n := len(words) - 1
	if n < 1 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:n], ", ") + " " + last + " " + words[n]
}

// loopback refuses an address that other hosts can reach: these listeners are for this host.
func (c *collector) loopback(key, addr string) {
	host, n, ok := c.hostPort(key, addr)
	if !ok {
		return
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		c.fault(key, "must be a loopback address, such as 127.0.0.1:%d, because only this host may reach it (got %q)", n, addr)
	}
}

func (c *collector) hostPort(key, addr string) (host string, n int, ok bool) {
	host, port, err := net.SplitHostPort(addr)
	n, errPort := strconv.Atoi(port)
	if err != nil || errPort != nil || n < 0 || n > 65535 {
		c.fault(key, "must be host:port, such as 127.0.0.1:8420 (got %q)", addr)
		return "", 0, false
	}
	return host, n, true
}

func (c *collector) nats(n NATS) {
	for _, u := range n.URL {
		c.url(u)
	}
	if n.Domain != "" && !domainRule.MatchString(n.Domain) {
		c.fault("nats.domain", "must be one token without dots, wildcards or white space (got %q)", n.Domain)
	}
	if n.InboxPrefix != "" && !inboxRule.MatchString(n.InboxPrefix) {
		c.fault("nats.inbox_prefix", "must be a subject without wildcards, such as _INBOX_relay (got %q)", n.InboxPrefix)
	}
	c.auth(n)
	if (n.TLS.Cert == "") != (n.TLS.Key == "") {
		c.fault("nats.tls", "cert and key belong together: set both or neither")
	}
	c.readable("nats.creds", n.Creds)
	c.readable("nats.nkey", n.NKey)
	c.readable("nats.tls.ca", n.TLS.CA)
	c.readable("nats.tls.cert", n.TLS.Cert)
	c.readable("nats.tls.key", n.TLS.Key)

	if n.Embedded.Listen != "" {
		c.loopback("nats.embedded.listen", n.Embedded.Listen)
	}
	if n.Embedded.Monitor != "" {
		c.loopback("nats.embedded.monitor", n.Embedded.Monitor)
	}
	if n.Embedded.StoreDir == "" {
		c.fault("nats.embedded.store_dir", "must name a directory")
	}
	if d, err := time.ParseDuration(n.Embedded.Sync); n.Embedded.Sync != SyncAlways && (err != nil || d <= 0) {
		c.fault("nats.embedded.sync", "must be always, or a duration above 0 such as 1s (got %q)", n.Embedded.Sync)
	}
	if n.Replicas < 1 || n.Replicas > 5 {
		c.fault("nats.replicas", "must be 1 to 5 (got %d)", n.Replicas)
	} else if n.Replicas > 1 && len(n.URL) == 0 {
		c.fault("nats.replicas", "must be 1 with the embedded server, which is a single server (got %d)", n.Replicas)
	}
}

// url refuses user info too: it would be a secret in a value that is logged.
func (c *collector) url(s string) {
	full := s
	if !strings.Contains(s, "://") {
		full = "nats://" + s
	}
	u, err := url.Parse(full)
	switch {
	case err != nil || !hostRule.MatchString(u.Hostname()) && net.ParseIP(u.Hostname()) == nil || !portOf(u.Port()):
		c.fault("nats.url", "must hold addresses such as nats://127.0.0.1:4222")
	case u.User != nil:
		c.fault("nats.url", "must not hold a user, password or token: use nats.user and nats.password, or nats.token")
	case !slices.Contains([]string{"nats", "tls", "ws", "wss"}, u.Scheme):
		c.fault("nats.url", "must begin with nats://, tls://, ws:// or wss:// (got %q)", u.Scheme)
	}
}

// portOf tells whether a port can be connected to; url.Parse has seen to it that it is a number.
func portOf(s string) bool {
	n, err := strconv.Atoi(s)
	return s == "" || err == nil && n > 0 && n <= 65535
}

// auth allows one way to authenticate, and none with the embedded server: somebody who has credentials and lost the URL
// would get an empty server instead of theirs.
func (c *collector) auth(n NATS) {
	var ways []string
	for _, way := range []struct {
		key string
		set bool
	}{
		{"nats.creds", n.Creds != ""},
		{"nats.nkey", n.NKey != ""},
		{"nats.user", n.User.Reveal() != "" || n.Password.Reveal() != ""},
		{"nats.token", n.Token.Reveal() != ""},
	} {
		if way.set {
			ways = append(ways, way.key)
		}
	}
	if len(ways) > 1 {
		c.fault(ways[1], "set only one way to authenticate: %s are set", strings.Join(ways, " and "))
	}
	if (n.User.Reveal() == "") != (n.Password.Reveal() == "") {
		c.fault("nats.user", "nats.user and nats.password belong together: set both or neither")
	}
	if n.TLS != (TLS{}) {
		ways = append(ways, "nats.tls")
	}
	if len(n.URL) == 0 && len(ways) > 0 {
		c.fault(ways[0], "has no effect without nats.url, because the embedded server takes no credentials: set nats.url, or remove this key")
	}
}

// readable looks whether a file that will be read later is there.
func (c *collector) readable(key, path string) {
	if path == "" {
		return
	}
	c.names(key, path)
	switch info, err := os.Stat(path); {
	case err != nil:
		c.fault(key, "cannot read the file %q: %v", path, plain(err))
	case info.IsDir():
		c.fault(key, "%q is a directory", path)
	}
}

func (c *collector) stream(key string, s Stream) {
	if !streamRule.MatchString(s.Name) {
		c.fault(key+".name", "must be a stream name: no dots, wildcards, slashes or white space (got %q)", s.Name)
	}
	if len(s.Subjects) == 0 {
		c.fault(key+".subjects", "at least one is required")
	}
	for i, p := range s.Subjects {
		if err := subject.ValidatePattern(p); err != nil {
			c.fault(fmt.Sprintf("%s.subjects[%d]", key, i), "%v", err)
		}
	}
	for _, word := range []struct{ name, got string }{{"storage", s.Storage}, {"retention", s.Retention}, {"discard", s.Discard}} {
		if word.got != "" {
			c.oneOf(key+"."+word.name, "streams."+word.name, word.got)
		}
	}
	if s.Replicas < 0 || s.Replicas > 5 {
		c.fault(key+".replicas", "must be 1 to 5, or 0 for the server's default (got %d)", s.Replicas)
	}
	if s.MaxMsgs < 0 {
		c.fault(key+".max_msgs", "must not be negative: 0 means no bound (got %d)", s.MaxMsgs)
	}
	c.notNegative(key+".max_age", s.MaxAge)
}
