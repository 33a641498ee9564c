// Package fleet lets the instances of a service know of each other, and agree on who works on what only one may work on.
//
// # Sessions
//
// Each instance keeps a session, a key of the bucket <SERVICE>_FLEET: the instance writes it again every quarter of the lease, with the
// lease as its TTL and with the revision of its last write as the expected one. When the instance stops doing so, the server
// removes the session, and every other instance sees that.
//
// An instance trusts its own session until the time just before the last confirmed write was sent, plus the lease, less a guard. So it
// stops before the server lets others in, whatever its link, its scheduler or its server do, as long as the clocks of NATS servers agree
// within the guard when the bucket changes its leader. An instance that waits for what another one has may also remove its session, on two conditions: a
// lease has passed by its own clock since it heard of the last write, which was after the holder sent it, and that write is still the last one. Only a write that was confirmed counts: raft had a quorum for it. A read proves
// nothing: a server that was cut off from the others goes on answering reads.
//
// # Claims
//
// A claim says which session has a resource. An instance writes a claim once, when the session named in it is gone, and it holds for as
// long as its session does. The revision of a claim grows with each owner: it is the fencing token, which a receiver can compare.
//
// # Limits
//
// The parts that instances have of a limit are in one document for each limit, by session ([Parts]). An instance changes it for itself only, and takes
// out sessions that are over. It stops using parts before it gives them back, and uses others only once the document says that it has them; a write
// of which nobody knows whether it counts leaves it with the fewer. What each wants is in its session, and all compute
// the same fair shares of that. An instance gives back only what others want.
package fleet
