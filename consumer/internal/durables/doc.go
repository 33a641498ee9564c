// Package durables says what is to be done to a durable before messages are pulled from it: it is made, changed, used as it is, or refused. A
// durable that exists is never changed in what somebody else may rely on, unless the operator says so (--adopt).
//
// [Durable.Look] finds out, and changes nothing; [Durable.Planned] says it. [Durable.Make], [Durable.Use] and [Durable.Change] do it.
//
// The server cannot say how many messages a durable that does not exist would deliver, and how many of these another durable has delivered
// before. So both are counted by consumers that deliver nothing and are removed at once.
package durables
