package natstest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/relaymq/relay/internal/freeport"
)

// Cluster runs n servers as one JetStream cluster and returns when its leader can place a replica on every node, so that
// a stream can be made at once on any of them. Options apply to every node. A publish right after a stream was made may find no responders yet: the other nodes learn of its subjects a little later.
func Cluster(t testing.TB, n int, opts ...Option) []*Server {
	t.Helper()
	// The ports of the routes must be known before the first node starts, and are free only until somebody takes
	// them. Another test process may be quicker: then the whole cluster moves.
	var err error
	for range 5 {
		var nodes []*Server
		if nodes, err = startCluster(t, n, opts); err == nil {
			return nodes
		}
	}
	t.Fatalf("natstest: cluster: %v", err)
	return nil
}

func startCluster(t testing.TB, n int, opts []Option) ([]*Server, error) {
	ports, err := freeport.Some(n)
	if err != nil {
		return nil, err
	}
	var routes []string
	for _, p := range ports {
		routes = append(routes, fmt.Sprintf("nats://127.0.0.1:%d", p))
	}
	var nodes []*Server
	for i, p := range ports {
		s, err := newServer(t, fmt.Sprintf("n%d", i+1), opts)
		if err != nil {
			return nil, err
		}
		s.cluster = fmt.Sprintf("cluster {name: test, listen: \"127.0.0.1:%d\", routes: [%s]}", p, strings.Join(routes, ", "))
		nodes = append(nodes, s)
	}
	// At once, for a node is ready only when it has heard from another.
	errs := make(chan error, n)
	for _, s := range nodes {
		go func() { errs <- s.start() }()
	}
	for range nodes {
		if e := <-errs; e != nil {
			err = e
		}
	}
	if err == nil {
		err = awaitLeader(nodes)
	}
	if err != nil {
		for _, s := range nodes {
			s.Stop()
		}
		return nil, err
	}
	return nodes, nil
}

// awaitLeader polls: the server offers no event for an election.
func awaitLeader(nodes []*Server) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.Now().Add(startTimeout)
	for ; time.Now().Before(deadline); <-tick.C {
		peers, current := 0, 0
		for _, s := range nodes {
			// Only the leader has an answer, and it leaves out the nodes it could not yet place a replica on.
			a := s.Look()
			peers += a.Peers
			if a.Current {
				current++
			}
		}
		if peers == len(nodes) && current == len(nodes) {
			return nil
		}
	}
	return fmt.Errorf("no meta leader after %v", startTimeout)
}
