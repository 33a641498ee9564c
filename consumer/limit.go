package consumer

import (
	"github.com/relaymq/relay/consumer/internal/limits"
)

// Limit is a bound that routes share: how many messages of theirs run at once, how many start in a time, or both. Routes name it in
// [Route.Limits]. A message that finds no room waits, and spends no attempt. Its fields:
//
//	Concurrency int  // handlers that run at once; one that ignores its timeout and was given up does not count. Zero: no bound
//	Rate Rate        // attempts that start in a time. Zero: no bound
//	Burst int        // attempts that may start at once after a while with fewer. Zero: what Rate permits in a twentieth of a second, and at least 1
//	Per string       // a template over the tokens of a message's subject, such as {1}: the bounds hold for each value of it. It may only
//	                 // name tokens that the key of the route has. Empty: they hold for all messages together
//	Scope string     // instance (default) or service, which is ScopeService. With Per, ScopeService needs routes with instances: one
type Limit = limits.Limit

// Rate is so many in a time: the fields Count, an int, and Per, a [time.Duration] of a second, a minute, an hour or a day. As text it is 100/s, 30/m,
// 1000/h or 5000/d. The zero value is no bound.
type Rate = limits.Rate

// ScopeService is what Limit.Scope says when all instances of the service share the limit. The default is that each has it for itself.
const ScopeService = limits.ScopeService

// CheckLimits says what is wrong with the limits that a route names, each fault beginning with the config name of its field.
func (r Route) CheckLimits(all map[string]Limit) error {
	return r.WithDefaults().inside(nil).CheckLimits(all)
}
