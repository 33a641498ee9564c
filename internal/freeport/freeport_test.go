package freeport

import (
	"fmt"
	"net"
	"testing"
)

func TestSome_differAndAreFree(t *testing.T) {
	ports, err := Some(50)
	if err != nil {
		t.Fatal(err)
	}
	seen := make(map[int]bool)
	for _, port := range ports {
		if seen[port] || port >= 32_768 {
			t.Errorf("port %d", port)
		}
		seen[port] = true
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			t.Error(err)
			continue
		}
		defer l.Close()
	}
}
