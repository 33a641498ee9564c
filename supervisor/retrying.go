package supervisor

// retrying keeps messages that failed before from taking all slots: while most of them fail again, they have half of the
// slots. If their handlers hang until the timeout, the other half is left to messages that nobody has judged.
type retrying struct {
	runs    int
	failed  float64 // how many of the last ones failed again, 0 to 1
	waiting keyQueue
}

// hold queues a key whose next message failed before.
func (t *retrying) hold(k *key) {
	if !k.retry {
		k.retry = true
		t.waiting.push(k)
	}
}

// enoughRetries tells whether no more messages that failed before may start now.
func (t *turn) enoughRetries() bool {
	return t.retrying.failed > 0.5 && t.retrying.runs >= max(1, t.slots()/2)
}

// endRetry counts out a run of a message that failed before.
func (t *turn) endRetry(r *run) {
	if r.first {
		return
	}
	t.retrying.runs--
	t.releaseRetries()
}

// judgeRetry notes how the run of a message that failed before ended.
func (t *turn) judgeRetry(r *run, failed bool) {
	if r.first {
		return
	}
	q := &t.retrying
	if q.failed -= q.failed / 8; failed {
		q.failed += 1.0 / 8
	}
	t.releaseRetries()
}

// releaseRetries lets keys go on whose retries waited: as many as may start now.
func (t *turn) releaseRetries() {
	q := &t.retrying
	room := max(1, t.slots()/2) - q.runs
	for q.waiting.len() > 0 && (room > 0 || q.failed <= 0.5) {
		k := q.waiting.pop()
		k.retry = false
		if t.keys[k.name] == k && k.messages() > 0 && (k.state == Flowing || k.state == Probing) {
			t.makeReady(k)
			room--
		}
	}
}

// stashRetries makes room in the window, which keeps more messages from coming: what has to wait for other retries waits in the
// stash.
func (t *turn) stashRetries() {
	for _, k := range t.retrying.waiting.items[t.retrying.waiting.head:] {
		if t.keys[k.name] == k {
			t.stashWindow(k)
		}
	}
}
