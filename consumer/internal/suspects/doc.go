// Package suspects finds the messages that end a process: which processes of a service died, and when a message that may be to blame
// runs alone.
//
// A Go handler can end the whole process: os.Exit, a panic in a goroutine of its own, a fatal error of the runtime, all the
// memory. The message that does so would come again after each restart, for ever. What finds it:
//
// Each process has a life ([Lives]): an entry in the bucket <SERVICE>_INSTANCES from its start to its clean end, and a subscription
// that answers while it lives. An entry whose life does not answer is a process that died. A message that was delivered
// before, that no instance has said anything of since, and that comes soon after such a death is a suspect: perhaps it ran
// when the process died, and perhaps it is the reason.
//
// Suspects run one at a time, while no other handler runs in the process ([Solo]), and before each is started that is
// written into its record. When it comes again with that record, and the life that ran it is no more, then it ended the
// process itself: that is a crash. Nothing else is one, so that no neighbour is ever charged. At retry.max_crashes the
// message goes to the dead letters instead of being started.
//
// Fresh messages cost nothing of this, and redelivered ones a look into the bucket while there was no death. Routes whose
// handlers do their work in another process (consumer.Outside) have no suspects.
//
// Lives knows subjects and a bucket, and Solo groups of a supervisor. [Suspect] is what they mean for a message: its record says when it runs
// alone.
package suspects
