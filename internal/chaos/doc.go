// Package chaos is the fault harness of relay: it runs the real program against real nats-servers, breaks what can be
// broken, and checks that nothing was lost. It is test code: nothing of the product imports it.
//
// # The parts
//
//	producer ──▶ nats-server ──▶ relay ──▶ handler      each a process of its own
//	   │             ▲             ▲          │
//	   │ confirmed   └── nemesis ──┘          │ starts and ends
//	   ▼                                      ▼
//	 ledger ──────────▶ checker ◀────────── ledger
//	                       ▲
//	      stream, durable, attempts and dead letters, once at rest
//
// A [World] is one run: a directory, processes, a seed and the log of what was done. Truth is kept outside relay: the
// producer notes each publish that the server confirmed ([Pub]), handlers append their starts and ends to a file that is
// theirs (package ledger). [World.Check] joins them and names what is wrong: see [Class].
//
// # Seeds
//
// Whatever is random in a run comes from its seed, which it prints. The same seed gives the same faults at the same
// places of the schedule; what the machine makes of it is not repeated.
//
// # Rows
//
// The rows are Go tests named for the fault matrix, TestF01_… . `go test` runs a slice of each; with the build tag chaos
// (make chaos) they run at their figures.
//
// # Clean up
//
// Every process has its own group and dies with the harness (Pdeathsig). Namespaces, mounts and cgroups carry the
// harness's pid in their names; those of a harness that is gone are removed when the next one starts. Traffic stays on
// loopback, or in network namespaces that the run made.
package chaos
