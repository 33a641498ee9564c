// Package provision says what a durable of relay's should be, how one that exists differs from that, and who may change it. It
// decides and does nothing: it asks no server, and all of it is a function of configurations.
//
//	Durable ── Wanted ──> the configuration to make it with
//	   └────── Judge ───> Comparison: what differs, and whether relay itself may change that
//	Mark, Floor           what relay writes into the metadata of its durables
//	Risks                 the settings of a stream under which a message that waits can vanish
package provision
