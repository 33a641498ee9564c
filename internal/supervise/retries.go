package supervise

// retries keeps messages that failed before from taking all slots: while most of them fail again, they have half of the
// slots. If their handlers hang until the timeout, the other half is left to messages that nobody has judged.
type retries struct {
	runs   int
	failed float64 // how many of the last ones failed again, 0 to 1
	keys   queue   // whose next message failed before and has to wait
}

func (q *retries) mostFail() bool { return q.failed > 0.5 }

// ended notes how a message fared that failed before.
func (q *retries) ended(how Kind) {
	q.failed -= q.failed / 8
	if how == Retry {
		q.failed += 1.0 / 8
	}
}

// judgeRetry notes how the run of a message that failed before ended.
func (s *slots) judgeRetry(r *run, how Kind) {
	if r.past == failedBefore {
		s.retries.ended(how)
		s.releaseRetries()
	}
}

// enoughRetries tells whether no more messages that failed before may start now.
func (s *slots) enoughRetries() bool {
	return s.retries.mostFail() && s.retries.runs >= max(1, s.open()/2)
}

// releaseRetries lets keys go on whose retries waited: as many as may start now.
func (s *slots) releaseRetries() {
	q := &s.retries
	room := max(1, s.open()/2) - q.runs
	for q.keys.len() > 0 && (room > 0 || !q.mostFail()) {
		k := q.keys.pop()
		if !k.gone && k.messages() > 0 && (k.flows() || k.is(Probing)) {
			s.queue(k)
			room--
		}
	}
}
