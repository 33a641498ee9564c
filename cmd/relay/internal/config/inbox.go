package config

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"

	"github.com/relaymq/relay/internal/subject"
)

// Whoever may subscribe to an inbox reads what comes there, and is first to use it: bodies that an instance pulls, codes that an
// operator asks for. So relay's inboxes are apart:
//
//	<prefix>.run.>            instances
//	<prefix>.<role>.<user>.>  commands of that role (operator, viewer, publisher), as a NATS user
//
// The list of a role permits all of its users, or one of them. Without a prefix in the configuration the commands that publish use _INBOX, as
// other clients do.

// inboxPrefix is what all of them begin with.
func (c *Config) inboxPrefix() string {
	if p := c.NATS.InboxPrefix; p != "" {
		return p
	}
	return "_INBOX_" + c.Service
}

// Inboxes is the pattern of all of relay's inboxes.
func (c *Config) Inboxes() string { return c.inboxPrefix() + ".>" }

// ServiceInbox begins the inboxes of the instances.
func (c *Config) ServiceInbox() string { return c.inboxPrefix() + subject.InstanceInbox }

// RoleInbox begins the inboxes of all users in a role.
func (c *Config) RoleInbox(role string) string { return c.inboxPrefix() + "." + role }

// UserInbox begins those of one NATS user in a role. The name may be empty.
func (c *Config) UserInbox(role, user string) string {
	return c.RoleInbox(role) + "." + inboxToken(cmp.Or(user, Nobody))
}

// Nobody stands for a NATS user that the configuration does not name.
const Nobody = "any"

// InboxOf tells whose inbox in a role a subject is.
func (c *Config) InboxOf(role, s string) (user string, ok bool) {
	rest, ok := strings.CutPrefix(s, c.RoleInbox(role)+".")
	user, _, more := strings.Cut(rest, ".")
	return user, ok && more
}

// oneToken is a name that can be a token of a subject as it is. A server puts the user's name in place of {{name()}}.
var oneToken = regexp.MustCompile(`^(\{\{name\(\)\}\}|[^\s.*>{}\x00-\x1f\x7f]{1,64})$`)

// inboxToken is a token for any name, another one for each.
func inboxToken(name string) string {
	if oneToken.MatchString(name) {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return "x-" + hex.EncodeToString(sum[:16])
}
