package http

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Egress says which addresses may be connected to. It is asked with the very address that is about to be connected, so that a name
// that resolves to something else the second time changes nothing.
//
// What no webhook wants is refused by default: link-local addresses and metadata services, multicast, reserved and documentation
// ranges, and IPv6 that is not global. Loopback and private networks are allowed when the operator alone has chosen the host, and
// refused when a message chooses part of it.
type Egress struct {
	// Deny are addresses and CIDR ranges that are never connected to, whatever Allow says.
	Deny []string `koanf:"deny"`
	// Allow are the only ones that may be. An entry that lies within a range that is refused by default opens that part of it.
	Allow []string `koanf:"allow"`
}

// span is a range that is refused by default.
type span struct {
	netip.Prefix
	what string
}

func spans(list ...string) (out []span) {
	for _, s := range list {
		prefix, what, _ := strings.Cut(s, " ")
		out = append(out, span{netip.MustParsePrefix(prefix), what})
	}
	return out
}

var (
	// never are refused whoever chose the host. 2000::/3 is all of IPv6 that is global; see [Egress.judge].
	never = spans(
		"0.0.0.0/8 this machine",
		"100.100.100.200/32 a metadata service", // Alibaba Cloud
		"168.63.129.16/32 a metadata service",   // Azure
		"169.254.0.0/16 link-local, where metadata services are",
		"192.0.0.0/24 reserved", // with 192.0.0.192 of Oracle Cloud
		"192.0.2.0/24 for documentation",
		"192.88.99.0/24 reserved",
		"198.51.100.0/24 for documentation",
		"203.0.113.0/24 for documentation",
		"224.0.0.0/4 multicast",
		"240.0.0.0/4 reserved",
		"2001::/32 a Teredo tunnel",
		"2001:db8::/32 for documentation",
		"2002::/16 a 6to4 tunnel",
		"3fff::/20 for documentation",
		"fd00:ec2::254/128 a metadata service", // AWS
		"fe80::/10 link-local",
	)
	// private are refused when a message chooses part of the host.
	private = spans(
		"10.0.0.0/8 private",
		"100.64.0.0/10 private",
		"127.0.0.0/8 loopback",
		"172.16.0.0/12 private",
		"192.168.0.0/16 private",
		"198.18.0.0/15 private",
		"::1/128 loopback",
		"fc00::/7 private",
	)

	global6    = netip.MustParsePrefix("2000::/3")
	notGlobal6 = span{netip.MustParsePrefix("::/0"), "no global address"}
	local6     = netip.MustParsePrefix("fc00::/7")
	nat64      = netip.MustParsePrefix("64:ff9b::/96")
	compatible = netip.MustParsePrefix("::/96")
	sixToFour  = netip.MustParsePrefix("2002::/16")
	teredo     = netip.MustParsePrefix("2001::/32")
)

// embedded are the IPv4 addresses inside an IPv6 address, to which a gateway or a tunnel would send what is sent there.
func embedded(a netip.Addr) (inside []netip.Addr) {
	if !a.Is6() {
		return nil
	}
	b := a.As16()
	four := func(i int) netip.Addr { return netip.AddrFrom4([4]byte(b[i : i+4])) }
	switch {
	case nat64.Contains(a), compatible.Contains(a) && a != netip.IPv6Loopback():
		inside = append(inside, four(12))
	case sixToFour.Contains(a):
		inside = append(inside, four(2))
	case teredo.Contains(a):
		client := four(12).As4()
		for i := range client {
			client[i] ^= 0xff
		}
		inside = append(inside, four(4), netip.AddrFrom4(client))
	}
	if isatap(a) {
		inside = append(inside, four(12))
	}
	return inside
}

// isatap tells whether an IPv6 address, under any prefix, ends in a tunnel to an IPv4 one.
func isatap(a netip.Addr) bool {
	b := a.As16()
	return a.Is6() && b[8]&^0x02 == 0 && b[9] == 0 && b[10] == 0x5e && b[11] == 0xfe
}

// guard is what an [Egress] says, ready to be asked.
type guard struct {
	deny, allow []netip.Prefix
	refused     []span
	own         func() []string // host:port of what belongs to relay; may be nil
}

// guard reads the lists; strict is for hosts that a message has a part in.
func (e Egress) guard(strict strictness, own func() []string) (*guard, error) {
	g := &guard{refused: never, own: own}
	if strict == ofMessages {
		g.refused = slices.Concat(never, private)
	}
	var err error
	if g.deny, err = prefixes(e.Deny); err != nil {
		return nil, fmt.Errorf("egress.deny%w", err)
	}
	if g.allow, err = prefixes(e.Allow); err != nil {
		return nil, fmt.Errorf("egress.allow%w", err)
	}
	return g, nil
}

// strictness is who has chosen the host.
type strictness int

const (
	ofOperator strictness = iota
	ofMessages
)

func prefixes(list []string) (out []netip.Prefix, err error) {
	for i, s := range list {
		p, err := netip.ParsePrefix(s)
		if a, errAddr := netip.ParseAddr(s); err != nil && errAddr == nil && a.Zone() == "" {
			p, err = netip.PrefixFrom(a, a.BitLen()), nil
		}
		switch {
		case err != nil:
			return nil, fmt.Errorf("[%d]: must be an address or a range such as 10.0.0.0/8 (got %q)", i, s)
		case p.Addr().Is4In6():
			return nil, fmt.Errorf("[%d]: write %q in the form of IPv4", i, s)
		case p != p.Masked():
			return nil, fmt.Errorf("[%d]: %q has address bits beyond the prefix length: write %v", i, s, p.Masked())
		}
		out = append(out, p)
	}
	return out, nil
}

func in(list []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
}

// judge returns why an address may not be connected to, or nil. IPv4 inside of IPv6 is judged too.
func (g *guard) judge(a netip.Addr) error {
	a = a.WithZone("").Unmap()
	forms := append([]netip.Addr{a}, embedded(a)...)
	if slices.ContainsFunc(forms, func(f netip.Addr) bool { return in(g.deny, f) }) {
		return fmt.Errorf("refused: %v is in egress.deny", a)
	}
	if len(g.allow) > 0 && !slices.ContainsFunc(forms, func(f netip.Addr) bool { return in(g.allow, f) }) {
		return fmt.Errorf("refused: %v is not in egress.allow", a)
	}
	for _, f := range forms {
		for _, r := range g.refused {
			if r.Contains(f) && !g.opened(r, f) {
				return fmt.Errorf("refused: %v is %s", a, r.what)
			}
		}
		special := nat64.Contains(f) || local6.Contains(f) || f == netip.IPv6Loopback() // judged by the address inside, or as private
		odd := f.Is6() && !global6.Contains(f) && !special || isatap(f)
		if odd && !g.opened(notGlobal6, f) {
			return fmt.Errorf("refused: %v is %s", a, notGlobal6.what)
		}
	}
	return nil
}

// opened tells whether an entry of allow lies within the range: 0.0.0.0/0 is a word about the internet, and not about metadata
// services.
func (g *guard) opened(r span, a netip.Addr) bool {
	return slices.ContainsFunc(g.allow, func(p netip.Prefix) bool {
		return p.Contains(a) && p.Bits() >= max(r.Bits(), 1) && r.Contains(p.Addr())
	})
}

// check is asked with the address that is about to be connected.
func (g *guard) check(ctx context.Context, address string) error {
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("refused: cannot read the address %q", address)
	}
	if err := g.judge(ap.Addr()); err != nil {
		return err
	}
	return g.isOwn(ctx, ap)
}

// isOwn returns an error for what belongs to relay: whoever reaches its listeners or its server through it could change what
// relay does. A name is looked up only for a port that is the same.
func (g *guard) isOwn(ctx context.Context, to netip.AddrPort) error {
	if g.own == nil {
		return nil
	}
	a := to.Addr().WithZone("").Unmap()
	forms := append([]netip.Addr{a}, embedded(a)...)
	for _, o := range g.own() {
		host, port, err := net.SplitHostPort(o)
		if err != nil || port != strconv.Itoa(int(to.Port())) {
			continue
		}
		own, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		if host == "" {
			own, err = []netip.Addr{netip.IPv6Unspecified()}, nil
		}
		if err != nil {
			return fmt.Errorf("refused: cannot tell whether %v is relay's own %s: %w", to, o, err)
		}
		for _, mine := range own {
			mine = mine.Unmap().WithZone("")
			for _, f := range forms {
				if mine == f || f.IsLoopback() && mine.IsLoopback() || mine.IsUnspecified() && ofThisHost(f) {
					return fmt.Errorf("refused: %v belongs to relay itself", to)
				}
			}
		}
	}
	return nil
}

// ofThisHost tells whether something that listens everywhere listens at a.
func ofThisHost(a netip.Addr) bool {
	if a.IsLoopback() || a.IsUnspecified() {
		return true
	}
	mine, err := net.InterfaceAddrs()
	return err != nil || slices.ContainsFunc(mine, func(m net.Addr) bool {
		p, err := netip.ParsePrefix(m.String())
		return err == nil && p.Addr().Unmap().WithZone("") == a
	})
}
