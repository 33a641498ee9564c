// Package freeport finds TCP ports for servers of tests and benches that are started later, or again.
package freeport

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
)

// given are the ports that Get has given in this process.
var given sync.Map

// Get is a port of loopback that nobody listens on. It is none of those that the system gives to connections (from 32768 on in Linux,
// net.ipv4.ip_local_port_range): between this call and the start of the server, or while it is down, somebody's connection would take it. Each call in
// a process gives another one.
func Get() (int, error) {
	var err error
	for range 1000 {
		port := 10_000 + rand.IntN(22_000)
		if _, before := given.LoadOrStore(port, true); before {
			continue
		}
		var l net.Listener
		if l, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			return port, l.Close()
		}
	}
	return 0, fmt.Errorf("no port is free: %w", err)
}

// Some are n of them.
func Some(n int) (ports []int, err error) {
	for range n {
		port, err := Get()
		if err != nil {
			return nil, err
		}
		ports = append(ports, port)
	}
	return ports, nil
}
