package http

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"
)

// dialer connects to what the operator's URL names, loopback and private networks included, but not to link-local and
// metadata addresses. The check is made on the very address that is about to be connected, so that a name that resolves
// to something else the second time changes nothing.
func dialer(timeout time.Duration) func(ctx context.Context, network, address string) (net.Conn, error) {
	d := &net.Dialer{
		Timeout: timeout,
		ControlContext: func(_ context.Context, _, address string, _ syscall.RawConn) error {
			ap, err := netip.ParseAddrPort(address)
			if err != nil {
				return fmt.Errorf("refused: cannot read the address %q", address)
			}
			if refused(ap.Addr()) {
				return fmt.Errorf("refused: %v is a link-local or metadata address", ap.Addr())
			}
			return nil
		},
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := d.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &countingConn{Conn: c}, nil
	}
}

var (
	linkLocal4 = netip.MustParsePrefix("169.254.0.0/16")
	linkLocal6 = netip.MustParsePrefix("fe80::/10")
	nat64      = netip.MustParsePrefix("64:ff9b::/96")
	compatible = netip.MustParsePrefix("::/96")
	sixToFour  = netip.MustParsePrefix("2002::/16")

	// Metadata services that do not live on a link-local address.
	metadata = []netip.Addr{
		netip.MustParseAddr("100.100.100.200"), // Alibaba Cloud
		netip.MustParseAddr("168.63.129.16"),   // Azure
		netip.MustParseAddr("192.0.0.192"),     // Oracle Cloud
		netip.MustParseAddr("fd00:ec2::254"),   // AWS
	}
)

// refused tells whether an address is link-local or a known metadata service, also when it is an IPv4 address inside an
// IPv6 one: a gateway would unwrap it.
func refused(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	if a.Is6() {
		b := a.As16()
		switch {
		case nat64.Contains(a), compatible.Contains(a):
			return refused(netip.AddrFrom4([4]byte(b[12:16])))
		case sixToFour.Contains(a):
			return refused(netip.AddrFrom4([4]byte(b[2:6])))
		}
	}
	if linkLocal4.Contains(a) || linkLocal6.Contains(a) {
		return true
	}
	for _, m := range metadata {
		if a == m {
			return true
		}
	}
	return false
}

// ofThisMachine tells whether a connection was not made for want of something that this machine lacks, whatever the
// endpoint. A name that does not exist is the endpoint's.
func ofThisMachine(err error) bool {
	for _, errno := range []syscall.Errno{
		syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EADDRNOTAVAIL, syscall.EAGAIN,
	} {
		if errors.Is(err, errno) {
			return true
		}
	}
	// Without descriptors the resolver fails so too, and keeps no more than the text of the reason.
	var dns *net.DNSError
	return errors.As(err, &dns) && dns.IsTemporary && !dns.IsNotFound
}

// countingConn counts the bytes handed to the kernel: the proof that a request was, or was not, begun.
type countingConn struct {
	net.Conn
	written atomic.Int64
}

func (c *countingConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.written.Add(int64(n))
	return n, err
}

// counted finds the countingConn under a connection that carries one request at a time. On HTTP/2 other requests write
// too, and a count would prove nothing: net/http repeats by itself what the server says it did not process.
func counted(c net.Conn) *countingConn {
	if t, ok := c.(*tls.Conn); ok {
		if t.ConnectionState().NegotiatedProtocol == "h2" {
			return nil
		}
		c = t.NetConn()
	}
	cc, _ := c.(*countingConn)
	return cc
}
