// Package route is a route while it runs on an instance: what it is to be ([Spec]), what its handlers get ([Msg]), what it counts, what keeps it from
// starting messages ([Standstill]), and the attempts of its messages ([Message]). Who begins and ends routes is not its matter.
//
//	Enter  what is known of a message, before its group has it
//	Do     one attempt: the lease, the caller, the handler, the verdict
//	Settle what becomes of it
//
// What routes of an instance share is their [Home].
package route
