// Package access computes, from a configuration, the subjects that each kind of user of relay needs, so that a NATS server
// can deny everything else. The lists follow what the program really uses: the tests run it under them.
package access

import (
	"fmt"
	"slices"
	"strings"

	"github.com/relaymq/relay/cmd/relay/internal/config"
	"github.com/relaymq/relay/event"
	"github.com/relaymq/relay/internal/archive"
	"github.com/relaymq/relay/internal/events"
	"github.com/relaymq/relay/internal/partition"
	"github.com/relaymq/relay/internal/schedule"
	"github.com/relaymq/relay/internal/subject"
)

// The roles. A user may have several.
const (
	// Service is `relay run`.
	Service = "service"
	// Operator is who looks at messages and acts: every command but run and pub.
	Operator = "operator"
	// Viewer sees status and events, and no message.
	Viewer = "viewer"
	// Publisher publishes what routes handle.
	Publisher = "publisher"
)

// Roles are all of them.
func Roles() []string { return []string{Service, Operator, Viewer, Publisher} }

// Permissions are what a user may do. Everything else is to be denied.
type Permissions struct {
	Publish   []string `json:"publish"`
	Subscribe []string `json:"subscribe"`
	// AllowResponses permits to answer requests, wherever the answer is to go: publishers are asked whether they still want a result.
	AllowResponses bool `json:"allow_responses"`
	// Notes say what the lists leave open, and how to narrow it.
	Notes []string `json:"notes"`
}

// For returns what a user with these roles needs. It panics on an unknown one. With an empty name it is what each user in these roles needs, and all of
// them may read the answers to one another.
func For(cfg *config.Config, user string, roles ...string) Permissions {
	b := &builder{cfg: cfg, api: "$JS.API.", user: user}
	if d := cfg.NATS.Domain; d != "" {
		b.api = "$JS." + d + ".API."
	}
	for _, role := range roles {
		switch role {
		case Service:
			b.service()
		case Operator:
			b.operator()
			b.note("an operator needs more for: relay pub (the role publisher), relay dlq replay --to-subject and replay jobs with a subject (to publish there)")
		case Viewer:
			b.viewer()
		case Publisher:
			b.publisher()
		default:
			panic(fmt.Sprintf("access: unknown role %q", role))
		}
	}
	b.Publish, b.Subscribe = compact(b.Publish), compact(b.Subscribe)
	if b.Notes == nil {
		b.Notes = []string{}
	}
	return b.Permissions
}

// compact sorts, and leaves out what another pattern of the list covers.
func compact(list []string) []string {
	kept := []string{}
	for i, s := range list {
		covered := slices.ContainsFunc(list[:i], func(o string) bool { return subject.Covers(o, s) }) ||
			slices.ContainsFunc(list[i+1:], func(o string) bool { return o != s && subject.Covers(o, s) })
		if !covered {
			kept = append(kept, s)
		}
	}
	slices.Sort(kept)
	return kept
}

type builder struct {
	Permissions
	cfg  *config.Config
	api  string // prefix of the JetStream API
	user string
}

func (b *builder) publish(subjects ...string)   { b.Publish = append(b.Publish, subjects...) }
func (b *builder) subscribe(subjects ...string) { b.Subscribe = append(b.Subscribe, subjects...) }
func (b *builder) note(format string, args ...any) {
	if n := fmt.Sprintf(format, args...); !slices.Contains(b.Notes, n) {
		b.Notes = append(b.Notes, n)
	}
}

// ask permits calls of the JetStream API.
func (b *builder) ask(calls ...string) {
	for _, c := range calls {
		b.publish(b.api + c)
	}
}

// answers permits to get answers to the commands of a role.
func (b *builder) answers(role string) {
	if b.user != "" {
		b.subscribe(b.cfg.UserInbox(role, b.user) + ".>")
		return
	}
	b.subscribe(b.cfg.RoleInbox(role) + ".>")
	b.note("users with this list can read the answers to one another. --user NAME prints a list for one NATS user")
}

// own are the names of relay's own streams, and of those of its buckets.
func (b *builder) own() (list []string) {
	for _, s := range []string{"RETRY", "DLQ"} {
		list = append(list, b.upper()+s)
	}
	if b.cfg.Events.Store {
		list = append(list, events.StreamName(b.cfg.Service))
	}
	if b.cfg.Archive.Outcomes {
		list = append(list, archive.StreamName(b.cfg.Service))
	}
	for _, s := range []string{"ATTEMPTS", "STATE", "JOBS", "INSTANCES", "LEDGER", "FLEET"} {
		list = append(list, "KV_"+b.upper()+s)
	}
	list = append(list, schedule.LaterStream(b.cfg.Service), schedule.IntakeStream(b.cfg.Service), "KV_"+schedule.Bucket(b.cfg.Service))
	return append(list, "OBJ_"+b.upper()+"DLQ_BODIES")
}

// upper begins the names of relay's own streams and buckets.
func (b *builder) upper() string { return strings.ToUpper(b.cfg.Service) + "_" }

// generations is how many streams of partitions the list permits: a route that is divided anew more often needs another list.
const generations = 8

// partitions permits what a route with partitions needs beside its stream.
func (b *builder) partitions(rt config.Route) {
	if rt.Partitions == 0 {
		return
	}
	for _, name := range b.copiesOf(rt) {
		b.read(name)
		b.remove(name)
		b.ask("STREAM.CREATE."+name, "STREAM.UPDATE."+name, "STREAM.DELETE."+name, "CONSUMER.LIST."+name, "CONSUMER.UNPIN."+name+".*")
		b.acknowledge(name, "*")
	}
	b.publish(partition.Subjects(b.cfg.Service, rt.Name))
	b.note("routes with partitions: the list is for %d generations; a route whose partitions, key or subjects changed more often needs a new list", generations)
}

// copiesOf are the streams of the route's partitions; none without them.
func (b *builder) copiesOf(rt config.Route) (names []string) {
	if rt.Partitions == 0 {
		return nil
	}
	for n := range generations {
		names = append(names, partition.Generation{Service: b.cfg.Service, Route: rt.Name, Number: n + 1}.Name())
	}
	return names
}

// read permits to look at a stream and to read it, also through consumers that are gone when that is done.
func (b *builder) read(stream string) {
	b.ask("STREAM.INFO."+stream, "STREAM.MSG.GET."+stream, "DIRECT.GET."+stream, "DIRECT.GET."+stream+".>")
	b.ask("CONSUMER.CREATE."+stream, "CONSUMER.CREATE."+stream+".>", "CONSUMER.INFO."+stream+".*", "CONSUMER.DELETE."+stream+".*", "CONSUMER.MSG.NEXT."+stream+".*")
	b.publish("$JS.FC." + stream + ".>") // answers to the server's flow control
}

// remove permits to take messages out of a stream.
func (b *builder) remove(stream string) {
	b.ask("STREAM.MSG.DELETE."+stream, "STREAM.PURGE."+stream)
}

// acknowledge permits to settle deliveries of a durable, in both forms that the server may give them.
func (b *builder) acknowledge(stream, durable string) {
	b.publish("$JS.ACK."+stream+"."+durable+".>", "$JS.ACK.*.*."+stream+"."+durable+".>")
}

// bucket permits to write a key-value bucket or an object store. With a domain the client goes by the API's prefix.
func (b *builder) bucket(prefix string) {
	b.publish(prefix + ".>")
	if b.cfg.NATS.Domain != "" {
		b.publish(b.api + prefix + ".>")
	}
}

func (b *builder) buckets(names ...string) {
	for _, n := range names {
		b.bucket("$KV." + b.upper() + n)
	}
}

// deadPrefixes are where dead letters are published.
func (b *builder) deadPrefixes() (list []string) {
	list = []string{b.cfg.Service + ".dlq.>"}
	for _, rt := range b.cfg.Routes {
		if p := rt.DeadLetter.Prefix; p != "" {
			list = append(list, p+".>")
		}
	}
	return list
}

// service is what an instance does.
func (b *builder) service() {
	s := b.cfg.Service
	b.ask("INFO", "STREAM.NAMES")
	for _, stream := range b.own() {
		b.read(stream)
		b.remove(stream)
		b.ask("STREAM.CREATE."+stream, "STREAM.UPDATE."+stream)
		b.subscribe("$JS.EVENT.ADVISORY.STREAM.UPDATED." + stream) // somebody edited it
	}
	for _, stream := range b.cfg.Streams {
		b.ask("STREAM.INFO."+stream.Name, "STREAM.CREATE."+stream.Name)
		if stream.Retention == "workqueue" { // what a durable has passed is taken out when its route has it
			b.ask("STREAM.MSG.DELETE." + stream.Name)
		}
	}
	for _, rt := range b.cfg.Routes {
		stream := b.streamOf(rt)
		b.read(stream)
		b.partitions(rt)
		b.ask("CONSUMER.LIST." + stream) // relay tells of durables whose routes are gone
		b.acknowledge(stream, durableOf(rt))
		b.ask("CONSUMER.UNPIN."+stream+"."+durableOf(rt), "CONSUMER.UNPIN."+b.upper()+"RETRY.*") // instances: one, and back
		b.publish(rt.Targets()...)
		b.publish(rt.Caller.Reply...) // results, to whoever asked for them
		b.publish(rt.Caller.Interest...)
	}
	b.ask("CONSUMER.LIST." + b.upper() + "RETRY") // relay plan with the configuration of the service
	b.acknowledge(b.upper()+"RETRY", "*")
	b.acknowledge(schedule.LaterStream(s), "relay")
	b.acknowledge(schedule.IntakeStream(s), "relay")
	for _, sc := range b.cfg.Schedules {
		b.publish(sc.Subject)
	}
	for _, p := range b.cfg.Routes { // delayed messages
		b.publish(p.Subjects...)
	}
	b.publish(s + ".later.wait.>") // where delayed messages wait: publishers only reach the intake
	b.buckets("SCHEDULES")
	b.publish(s+".park.>", s+".due.>", s+".ctl.alive.*", s+".ctl.peer.*", s+".ctl.view.status", event.Prefix(s)+".>")
	if b.cfg.Archive.Outcomes {
		b.publish(archive.Prefix(s) + "*")
	}
	b.publish(b.deadPrefixes()...)
	b.buckets("ATTEMPTS", "STATE", "JOBS", "INSTANCES", "LEDGER", "FLEET")
	b.bucket("$O." + b.upper() + "DLQ_BODIES")
	if b.cfg.Admin.Listen != "" && b.cfg.Admin.UI != config.UIOff { // the console is an operator, with the connection of the service
		b.publish(s+".ctl.view.>", s+".ctl.act.>", "$SYS.REQ.USER.INFO")
		b.ask("CONSUMER.INFO." + b.upper() + "RETRY.*")
	}
	b.publish(b.cfg.Inboxes()) // answers to commands and instances
	b.subscribe(s+".ctl.>", "$SRV.>")
	if b.cfg.Admin.Listen != "" && b.cfg.Admin.UI != "off" {
		b.acts() // the console does as its user what the commands do
	}
	b.subscribe(b.cfg.Inboxes()) // its own, and those of commands that are run with its configuration
}

func (b *builder) operator() {
	b.acts()
	b.answers(Operator)
	b.answers(Viewer)
}

// acts is what the commands do.
func (b *builder) acts() {
	s := b.cfg.Service
	b.sees()
	b.ask("INFO", "STREAM.NAMES", "STREAM.LIST", "STREAM.INFO.*", "CONSUMER.LIST.*")
	b.ask("CONSUMER.INFO.*.*") // audit and trace; it tells nothing that the list does not
	for _, stream := range b.own() {
		b.read(stream)
	}
	b.read(archive.StreamName(s)) // trace reads what was kept before it was turned off, too
	for _, stream := range []string{b.upper() + "DLQ", b.upper() + "RETRY", schedule.LaterStream(s), schedule.IntakeStream(s), "OBJ_" + b.upper() + "DLQ_BODIES", "KV_" + b.upper() + "JOBS"} {
		b.remove(stream)
	}
	// Orders and jobs can be given before an instance ever ran.
	b.ask("STREAM.CREATE.KV_"+b.upper()+"STATE", "STREAM.CREATE.KV_"+b.upper()+"JOBS", "STREAM.CREATE.KV_"+schedule.Bucket(s))
	for _, rt := range b.cfg.Routes {
		// A retry is shown with the message that waits.
		stream := b.streamOf(rt)
		b.ask("STREAM.MSG.GET."+stream, "DIRECT.GET."+stream, "DIRECT.GET."+stream+".>")
		for _, name := range b.copiesOf(rt) { // relay trace finds the message there
			b.ask("STREAM.MSG.GET."+name, "DIRECT.GET."+name, "DIRECT.GET."+name+".>")
		}
		b.ask("CONSUMER.CREATE."+stream+".>", "CONSUMER.DELETE."+stream+".*") // relay plan counts messages by consumers that deliver nothing
	}
	b.note("relay orphans move takes messages from the durable of a route that was renamed only with a user that is permitted, for the time of the move: $JS.ACK.<stream>.<old durable>.>, CONSUMER.MSG.NEXT and CONSUMER.DELETE of it")
	b.publish(s+".park.>", s+".due.>", s+".ctl.act.>", event.Prefix(s)+".>", "$SYS.REQ.USER.INFO")
	b.publish(b.deadPrefixes()...)
	b.buckets("STATE", "JOBS", "SCHEDULES")
	b.bucket("$O." + b.upper() + "DLQ_BODIES")
}

func (b *builder) viewer() {
	b.sees()
	b.answers(Viewer)
}

// sees is to see what instances say of themselves.
func (b *builder) sees() {
	b.publish(b.cfg.Service + ".ctl.view.>")
	b.subscribe(event.Prefix(b.cfg.Service) + ".>")
}

// publisher fills the streams.
func (b *builder) publisher() {
	events := event.Prefix(b.cfg.Service) + ".>"
	for _, rt := range b.cfg.Routes {
		for _, p := range rt.Subjects {
			if !subject.Overlaps(p, events) { // what happens to relay is for relay to say
				b.publish(p, b.cfg.Service+".later.in.*."+p)
			}
		}
		b.AllowResponses = b.AllowResponses || len(rt.Caller.Interest) > 0
	}
	if b.cfg.NATS.InboxPrefix != "" {
		b.answers(Publisher)
	}
	b.subscribe("_INBOX.>")
	b.note("publishers share _INBOX.>, where NATS clients get their answers: a publisher that does not trust the others sets an inbox prefix of its own in its client, and gets a list without _INBOX.>")
}

// streamOf is the name of a route's stream, or * when only the server knows it.
func (b *builder) streamOf(rt config.Route) string {
	if rt.Stream != "" {
		return rt.Stream
	}
	for _, s := range b.cfg.Streams {
		for _, p := range s.Subjects {
			if slices.ContainsFunc(rt.Subjects, func(r string) bool { return subject.Overlaps(p, r) }) {
				return s.Name
			}
		}
	}
	b.note("route %s names no stream, so that its permissions are for all streams: set stream in the route", rt.Name)
	return "*"
}

func durableOf(rt config.Route) string {
	if rt.Durable != "" {
		return rt.Durable
	}
	return rt.Name
}
