package chaos

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
)

// NATS is the server, or the three servers, of a run.
type NATS struct {
	w     *World
	Nodes []*Node
	hosts *Hosts // nil: on loopback
	user  string // of the harness, as user:password@
}

// Node is one nats-server process.
type Node struct {
	*Proc
	Port  int
	conf  string
	w     *World
	links []*Proxy // to and from the others; nil without NATSConfig.Links
}

// NATSConfig changes how servers run. Its zero value is one server with the defaults of nats-server.
type NATSConfig struct {
	Replicas int    // 3 for a cluster
	Sync     string // sync_interval
	StoreDir string // of a single server
	MaxStore string // max_file_store
	Extra    string // more of the configuration file
	Hosts    *Hosts
	Binary   string // instead of chaosd
	Links    bool   // servers of a cluster reach each other by proxies, for Isolate
	Env      []string
}

// StartNATS runs the servers, and connects the harness.
func (w *World) StartNATS(c NATSConfig) *NATS {
	w.T.Helper()
	n := &NATS{w: w, hosts: c.Hosts}
	w.nats = n
	count := max(c.Replicas, 1)
	host := "127.0.0.1"
	if c.Hosts != nil {
		host = c.Hosts.NATSIP
	}
	var clusterPorts []int
	for range count {
		clusterPorts = append(clusterPorts, freePort(w.T))
	}
	links, routes := w.routes(c, host, clusterPorts)
	for i := range count {
		node := &Node{w: w, Port: freePort(w.T), conf: w.path(fmt.Sprintf("n%d.conf", i+1)), links: links[i]}
		store := c.StoreDir
		if store == "" {
			store = w.path(fmt.Sprintf("n%d-store", i+1))
		}
		text := fmt.Sprintf("server_name: n%d\nlisten: %s:%d\njetstream {\n store_dir: %q\n max_mem: 256MB\n max_file: %s\n",
			i+1, host, node.Port, store, orText(c.MaxStore, "8GB"))
		if c.Sync != "" {
			text += " sync_interval: " + c.Sync + "\n"
		}
		text += "}\n"
		if count > 1 {
			text += fmt.Sprintf("cluster {\n name: chaos\n listen: %s:%d\n routes: [%s]\n", host, clusterPorts[i], strings.Join(routes[i], ", "))
			if c.Links {
				text += " advertise: \"127.0.0.1:1\"\n" // nobody is to find a way past the proxies
			}
			text += "}\n"
		}
		text += c.Extra
		if err := os.WriteFile(node.conf, []byte(text), 0o600); err != nil {
			w.T.Fatal(err)
		}
		opts := procOptions{env: c.Env}
		if c.Hosts != nil {
			opts.netns = c.Hosts.NATS
		}
		node.Proc = w.startProc(fmt.Sprintf("n%d", i+1), opts, orText(c.Binary, w.Bin.Chaosd), "nats", "-c", node.conf)
		n.Nodes = append(n.Nodes, node)
	}
	return n
}

// routes are the addresses at which each server finds the others, and the proxies on its ways to and from them.
func (w *World) routes(c NATSConfig, host string, ports []int) (links [][]*Proxy, routes [][]string) {
	links, routes = make([][]*Proxy, len(ports)), make([][]string, len(ports))
	for from := range ports {
		for to, port := range ports {
			switch addr := fmt.Sprintf("%s:%d", host, port); {
			case !c.Links:
				routes[from] = append(routes[from], "nats://"+addr)
			case from != to:
				p := NewProxy(w.T, addr)
				links[from], links[to] = append(links[from], p), append(links[to], p)
				routes[from] = append(routes[from], p.URL())
			}
		}
	}
	return links, routes
}

// Isolate parts a server from the others, whatever its clients do, until Rejoin.
func (n *Node) Isolate() {
	for _, p := range n.links {
		p.Stall(Up | Down)
	}
}

// Rejoin ends Isolate.
func (n *Node) Rejoin() {
	for _, p := range n.links {
		p.Resume()
	}
}

func orText(s, def string) string {
	if s == "" {
		return def
	}
	return s
}

// URL of all nodes.
func (n *NATS) URL() string {
	host := "127.0.0.1"
	if n.hosts != nil {
		host = n.hosts.NATSIP
	}
	var urls []string
	for _, node := range n.Nodes {
		urls = append(urls, fmt.Sprintf("nats://%s%s:%d", n.user, host, node.Port))
	}
	return strings.Join(urls, ",")
}

// url of one node on loopback, without a user.
func (n *Node) url() string { return fmt.Sprintf("nats://127.0.0.1:%d", n.Port) }

// Addr of the first node, for a proxy.
func (n *NATS) Addr() string { return strings.TrimPrefix(strings.Split(n.URL(), ",")[0], "nats://") }

func (n *NATS) replicas() int { return len(n.Nodes) }

func (n *NATS) dialer() nats.CustomDialer {
	if n.hosts == nil {
		return nil
	}
	return nsDialer{n.hosts.NATS}
}

// Up waits until the node takes connections.
func (n *Node) Up() time.Duration {
	n.w.T.Helper()
	addr := fmt.Sprintf("127.0.0.1:%d", n.Port)
	dial := (&net.Dialer{Timeout: time.Second}).DialContext
	if h := n.w.nats.hosts; h != nil {
		addr, dial = fmt.Sprintf("%s:%d", h.NATSIP, n.Port), nsDialer{h.NATS}.DialContext
	}
	return n.w.Eventually(20*time.Second, n.Name+" takes connections", func() bool {
		ctx, cancel := n.w.ctx(time.Second)
		defer cancel()
		c, err := dial(ctx, "tcp", addr)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
}

// KillNATS is kill -9 of a node. What was in flight, and the acks of its last moments, may come again.
func (w *World) KillNATS(n *Node) {
	before, at := w.InFlight(), time.Now()
	n.Kill() // which waits for its end
	f := w.fault("kill -9 "+n.Name, at, before)
	f.Acks = len(w.nats.Nodes) == 1
}

// Reload rewrites the part of the configuration after mark, and has the node read it again.
func (n *Node) Reload(change func(conf string) string) {
	n.w.T.Helper()
	b, err := os.ReadFile(n.conf)
	if err == nil {
		err = os.WriteFile(n.conf, []byte(change(string(b))), 0o600)
	}
	if err != nil {
		n.w.T.Fatal(err)
	}
	n.w.Note("reload %s", n.Name)
	n.Signal(syscall.SIGHUP)
}

// Leader is the node that leads a stream or, with a durable, its consumer.
func (w *World) Leader(stream, durable string) *Node {
	w.T.Helper()
	var name string
	w.must("find the leader", func(ctx context.Context) error {
		s, err := w.js.Stream(ctx, stream)
		if err != nil {
			return err
		}
		name = s.CachedInfo().Cluster.Leader
		if durable != "" {
			c, err := s.Consumer(ctx, durable)
			if err != nil {
				return err
			}
			name = c.CachedInfo().Cluster.Leader
		}
		if name == "" {
			return fmt.Errorf("no leader of %s %s", stream, durable)
		}
		return nil
	})
	for _, n := range w.nats.Nodes {
		if n.Name == name {
			return n
		}
	}
	w.T.Fatalf("no node %s", name)
	return nil
}

// led tells whether stream and durable have leaders, neither of them the one that is gone.
func (w *World) led(stream, durable, gone string) bool {
	ctx, cancel := w.ctx(300 * time.Millisecond)
	defer cancel()
	s, err := w.js.Stream(ctx, stream)
	if err != nil {
		return false
	}
	c, err := s.Consumer(ctx, durable)
	if err != nil || s.CachedInfo().Cluster == nil || c.CachedInfo().Cluster == nil {
		return false
	}
	for _, leader := range []string{s.CachedInfo().Cluster.Leader, c.CachedInfo().Cluster.Leader} {
		if leader == "" || leader == gone {
			return false
		}
	}
	return true
}

// StepDown asks the leader of a stream or consumer to give up.
func (w *World) StepDown(stream, durable string) {
	subject := "$JS.API.STREAM.LEADER.STEPDOWN." + stream
	if durable != "" {
		subject = "$JS.API.CONSUMER.LEADER.STEPDOWN." + stream + "." + durable
	}
	before := w.InFlight()
	w.fault("step-down "+stream+" "+durable, time.Now(), before)
	ctx, cancel := w.ctx(2 * time.Second)
	defer cancel()
	_, _ = w.nc.RequestWithContext(ctx, subject, nil) // an election under way answers nothing
}
