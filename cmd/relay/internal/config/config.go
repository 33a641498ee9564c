package config

import (
	"encoding"
	"reflect"
	"strings"
	"time"

	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/consumer/handler"
	"github.com/relaymq/relay/internal/fleet"
	"github.com/relaymq/relay/internal/schedule"
)

// Config is a configuration that passed every check. Everything that has a default is filled in, but for the limits of
// Streams, whose zero leaves the choice to the server.
type Config struct {
	// Service begins the names of relay's own subjects and, in upper case, of its streams and buckets.
	Service string   `koanf:"service"`
	NATS    NATS     `koanf:"nats"`
	Streams []Stream `koanf:"streams"`
	// Defaults is what the file has under defaults:, as it stands. Routes have it merged in already.
	Defaults Route   `koanf:"defaults"`
	Routes   []Route `koanf:"routes"`
	// Limits are bounds that routes share, by name.
	Limits map[string]consumer.Limit `koanf:"limits"`
	// Schedules are messages that relay publishes again and again.
	Schedules []schedule.Schedule `koanf:"schedules"`
	// Later bounds delayed messages.
	Later Later `koanf:"later"`
	// Parked bounds messages that wait for their retry.
	Parked  consumer.Parked  `koanf:"parked"`
	DLQ     DLQ              `koanf:"dlq"`
	Events  consumer.Events  `koanf:"events"`
	Archive consumer.Archive `koanf:"archive"`
	Fleet   consumer.Fleet   `koanf:"fleet"`
	Drain   time.Duration    `koanf:"drain"`
	Reload  Reload           `koanf:"reload"`
	Ready   Ready            `koanf:"ready"`
	Admin   Admin            `koanf:"admin"`
	Log     Log              `koanf:"log"`
	// Source is where all of this came from.
	Source Source `koanf:"-"`
}

// Reload says when the configuration is read again without being told to.
type Reload struct {
	// Watch is how often the content of the file, and of the files that it names, is compared. Zero is never.
	Watch time.Duration `koanf:"watch"`
}

// Source is what was read.
type Source struct {
	// File is the path of the configuration file, or empty.
	File string
	// Hash is the beginning of the SHA-256 of the file as it was read, as sha256sum prints it.
	Hash string
	// Files are those that the configuration names: credentials, certificates, secrets.
	Files []string
	named []namedFile
	// Overrides are the names of the variables and --set flags that were applied.
	Overrides []string
	// Warnings are what is valid, and probably not meant.
	Warnings []Warning
}

// Ready says when readiness fails, beside what is broken.
type Ready struct {
	// Stalled is for how long a route may start nothing, although messages wait and no operator paused it.
	Stalled time.Duration `koanf:"stalled"`
}

// Secret is a value that prints as ***.
type Secret = handler.Secret

// NATS is how relay reaches its server.
type NATS struct {
	// URL lists the servers. Empty means the embedded one.
	URL URLs `koanf:"url"`
	// Context is a context of the nats command. It gives what the other keys leave out.
	Context string `koanf:"context"`
	Domain  string `koanf:"domain"`
	// InboxPrefix begins the subjects of the answers that relay waits for; see [Config.ServiceInbox].
	InboxPrefix string `koanf:"inbox_prefix"`
	// Creds and NKey are paths of files; the other ways to authenticate are values. At most one way is set.
	Creds    string   `koanf:"creds"`
	NKey     string   `koanf:"nkey"`
	User     Secret   `koanf:"user"`
	Password Secret   `koanf:"password"`
	Token    Secret   `koanf:"token"`
	TLS      TLS      `koanf:"tls"`
	Embedded Embedded `koanf:"embedded"`
	// Replicas of relay's own streams and buckets.
	Replicas int `koanf:"replicas"`
}

// TLS names PEM files. Cert and Key are both set or neither.
type TLS struct {
	CA   string `koanf:"ca"`
	Cert string `koanf:"cert"`
	Key  string `koanf:"key"`
}

// SyncAlways is the value of [Embedded].Sync for an fsync per message.
const SyncAlways = "always"

// Embedded is the server that runs inside relay when NATS.URL is empty.
type Embedded struct {
	// Listen is where other programs reach it, with the key in StoreDir. Empty means that only relay itself does.
	Listen   string `koanf:"listen"`
	StoreDir string `koanf:"store_dir"`
	// Sync is a duration, or SyncAlways.
	Sync string `koanf:"sync"`
	// Monitor is the address of the server's monitoring pages. Empty means none.
	Monitor string `koanf:"monitor"`
}

// Stream is made when missing and compared when present. What is zero is the server's default, and not compared.
type Stream struct {
	Name      string         `koanf:"name"`
	Subjects  []string       `koanf:"subjects"`
	Storage   string         `koanf:"storage"`
	Retention string         `koanf:"retention"`
	Discard   string         `koanf:"discard"`
	Replicas  int            `koanf:"replicas"`
	MaxAge    time.Duration  `koanf:"max_age"`
	MaxBytes  consumer.Bytes `koanf:"max_bytes"`
	MaxMsgs   int            `koanf:"max_msgs"`
}

// Route is a [consumer.Route] with the handler that the file names.
type Route struct {
	consumer.Route `koanf:",squash"`
	Handler        Handler `koanf:"handler"`
	// Fallback is nil when the file has none.
	Fallback *Fallback `koanf:"fallback"`
}

// Fallback is a [consumer.Fallback] with the handler that the file names.
type Fallback struct {
	consumer.Fallback `koanf:",squash"`
	Handler           Handler `koanf:"handler"`
}

// Equal tells whether both say the same.
func (f *Fallback) Equal(other *Fallback) bool {
	if f == nil || other == nil {
		return f == other
	}
	return reflect.DeepEqual(f.Fallback, other.Fallback) && f.Handler.Equal(other.Handler)
}

// check is Validate with the fallback.
func (r Route) check() error {
	if r.Fallback != nil {
		r.Route.Fallback = &r.Fallback.Fallback
	}
	return r.Validate()
}

// parts are the handlers of the route that the file names, with their keys below the route.
func (r Route) parts() (list []routePart) {
	list = append(list, routePart{"handler", r.Handler})
	if r.Fallback != nil {
		list = append(list, routePart{"fallback.handler", r.Fallback.Handler})
	}
	return list
}

type routePart struct {
	key string
	Handler
}

// withDefaults fills the route, and the prefix of its dead letters, which depends on the service.
func (r Route) withDefaults(service string) Route {
	if r.Fallback != nil {
		r.Route.Fallback = &r.Fallback.Fallback
	}
	r.Route = r.Route.WithDefaults()
	if r.Fallback != nil {
		r.Fallback = &Fallback{*r.Route.Fallback, r.Fallback.Handler.withDefaults()}
		r.Route.Fallback = nil // Build puts it there
	}
	if r.DeadLetter.Prefix == "" {
		r.DeadLetter.Prefix = service + ".dlq"
	}
	r.Handler = r.Handler.withDefaults()
	return r
}

// What DLQ.OnFull says.
const (
	OnFullBlock      = "block"
	OnFullDropOldest = "drop_oldest"
)

// DLQ bounds the dead-letter stream. Zero means no bound.
type DLQ struct {
	MaxAge   time.Duration  `koanf:"max_age"`
	MaxBytes consumer.Bytes `koanf:"max_bytes"`
	MaxMsgs  int            `koanf:"max_msgs"`
	// OnFull is what happens to a dead letter when MaxBytes or MaxMsgs is reached.
	OnFull string `koanf:"on_full"`
}

// Later bounds the delayed messages that wait. Zero of MaxBytes or MaxMsgs is the default.
type Later struct {
	MaxBytes consumer.Bytes `koanf:"max_bytes"`
	MaxMsgs  int            `koanf:"max_msgs"`
	MaxAge   time.Duration  `koanf:"max_age"`
}

// What Admin.UI says.
const (
	UIOff     = "off"
	UIView    = "view"
	UIOperate = "operate"
)

// Admin is the listener of status, metrics and probes.
type Admin struct {
	// Listen is host:port, or empty for no listener; the file may also say off, which is decoded as empty.
	Listen string `koanf:"listen"`
	// Probes is host:port of a second listener for kubelets and Prometheus, on any address, without authentication: /livez,
	// /readyz and /metrics only. Empty or off is none.
	Probes string `koanf:"probes"`
	// UI is the console on Listen: UIOff, UIView or UIOperate, which is the most that a session of it may do.
	UI string `koanf:"ui"`
	// ShowBodies lets sessions that may only view see bodies and headers of messages.
	ShowBodies bool `koanf:"show_bodies"`
}

// Log is how relay logs.
type Log struct {
	Level  string `koanf:"level"`
	Format string `koanf:"format"`
	// Burst is how often a line of the same message, route and reason is written within ten seconds. Zero is any number.
	Burst int `koanf:"burst"`
}

// defaults is what a file that says nothing means. Routes are filled later, each by its own WithDefaults.
func defaults() Config {
	later := schedule.Limits{}.WithDefaults()
	return Config{
		Service: "relay",
		NATS: NATS{
			Embedded: Embedded{StoreDir: "./relay-data", Sync: "1s"},
			Replicas: 1,
		},
		Later:   Later{MaxBytes: consumer.Bytes(later.MaxBytes), MaxMsgs: int(later.MaxMsgs), MaxAge: later.MaxAge},
		DLQ:     DLQ{OnFull: OnFullBlock},
		Parked:  consumer.Parked{}.WithDefaults(),
		Events:  consumer.Events{}.WithDefaults(),
		Archive: consumer.Archive{}.WithDefaults(),
		Fleet:   consumer.Fleet{Lease: fleet.MinLease},
		Drain:   30 * time.Second,
		Ready:   Ready{Stalled: time.Minute},
		Admin:   Admin{Listen: "127.0.0.1:8420", UI: UIOperate},
		Log:     Log{Level: "info", Format: "auto", Burst: 20},
	}
}

// URLs is a list of servers, written as a list or separated by commas.
type URLs []string

var _ encoding.TextUnmarshaler = (*URLs)(nil)

// UnmarshalText splits at commas and leaves out what is empty.
func (u *URLs) UnmarshalText(text []byte) error {
	*u = nil
	for s := range strings.SplitSeq(string(text), ",") {
		if s = strings.TrimSpace(s); s != "" {
			*u = append(*u, s)
		}
	}
	return nil
}

// String is the form that nats.Connect takes.
func (u URLs) String() string { return strings.Join(u, ",") }
