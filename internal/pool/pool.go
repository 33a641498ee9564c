// Package pool runs what may block, off the paths that must not: a bounded number of goroutines over an unbounded queue.
// Whoever submits never waits; the bound of the queue is whatever bounds its submitters.
package pool

import "sync"

// Pool runs functions on at most a fixed number of goroutines, which exist while there is work. Create it with [New].
type Pool struct {
	mu      sync.Mutex
	queue   []func()
	running int
	limit   int
	idle    sync.Cond
}

// New makes a pool of at most limit goroutines.
func New(limit int) *Pool {
	p := &Pool{limit: limit}
	p.idle.L = &p.mu
	return p
}

// Go runs f as soon as a goroutine is free, in the order of the calls. It does not block.
func (p *Pool) Go(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queue = append(p.queue, f)
	if p.running < p.limit {
		p.running++
		go p.work()
	}
}

func (p *Pool) work() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.queue) > 0 {
		f := p.queue[0]
		p.queue[0] = nil
		p.queue = p.queue[1:]
		p.mu.Unlock()
		f()
		p.mu.Lock()
	}
	p.queue = nil
	p.running--
	if p.running == 0 {
		p.idle.Broadcast()
	}
}

// Wait blocks until nothing is queued and nothing runs.
func (p *Pool) Wait() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.running > 0 {
		p.idle.Wait()
	}
}

// Len is how many functions are queued and not started.
func (p *Pool) Len() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.queue)
}
