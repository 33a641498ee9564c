package provision

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Routes says which routes count when a durable is judged.
type Routes int

const (
	// Ever are those of this configuration, and those that were ever configured on the durable: another instance may have them.
	Ever Routes = iota
	// Only are those of this configuration. Whoever adopts a durable means these.
	Only
)

// Stream is what has to be known of the stream for a judgement.
type Stream struct {
	Subjects []string
	// Unknown tells whether the stream brings what none of its subjects says, as one with sources does.
	Unknown bool
}

// Comparison is how a durable differs from what it should be.
type Comparison struct {
	Want jetstream.ConsumerConfig
	// Changeable settings are those that the server changes on a durable that exists. Each is "name is this, not that".
	Changeable, Fixed []string
	// Policy says that one of them is for the pulls of one instance, and the other for those of all.
	Policy bool
	// Own says that relay made the durable, and that all that differs is which routes it is for, Policy, or an AckWait that relay may
	// change: no person has to be asked.
	Own bool
}

// Differs is all that differs.
func (c Comparison) Differs() []string { return slices.Concat(c.Fixed, c.Changeable) }

// Adopted is Want with the note that its routes were set now by --adopt.
func (c Comparison) Adopted(now time.Time) jetstream.ConsumerConfig {
	want := c.Want
	want.Metadata = maps.Clone(want.Metadata)
	want.Metadata[markAdopted] = now.UTC().Format(time.RFC3339Nano)
	return want
}

// Judge compares a durable with what it should be.
func (d Durable) Judge(have jetstream.ConsumerConfig, on Stream, which Routes) (c Comparison) {
	was, m, has := MarkOf(have.Metadata), d.Mark, Filters(have)
	made := was.Service == m.Service
	switch {
	case made && which == Only:
		m.Adopted = was.Adopted
	case made:
		m = was.join(m)
	}
	c.Want = d.wanted(on.Subjects, m)
	// A filter that relay gave it when the stream held more stays, and one is given when the stream brings what none of its
	// subjects says.
	if all := m.Patterns(); made && (slices.Equal(has, all) || len(has) == 0 && on.Unknown) {
		setFilters(&c.Want, all)
	}
	c.Changeable, c.Fixed = differences(have, c.Want)
	sameFilter := slices.Equal(has, Filters(c.Want))
	written := len(has) == 0 || slices.Equal(has, was.Patterns()) // by relay itself
	others := len(c.Changeable) + len(c.Fixed)
	if !sameFilter {
		others--
	}
	if c.Policy = !samePolicy(have, c.Want); c.Policy {
		others--
	}
	waits := made && have.AckWait != d.AckWait && have.AckWait == d.FormerAckWait
	if waits {
		others--
	}
	sameMarks := maps.Equal(m.over(have.Metadata), have.Metadata)
	c.Own = made && others == 0 && (sameFilter || written) && (c.Policy || waits || !sameFilter || !sameMarks)
	return c
}

// Changed is a durable with what relay cares about as wanted. An update replaces the whole configuration: the rest stays.
func Changed(have, want jetstream.ConsumerConfig) jetstream.ConsumerConfig {
	have.AckWait, have.MaxDeliver, have.BackOff, have.MaxAckPending = want.AckWait, want.MaxDeliver, nil, want.MaxAckPending
	have.FilterSubject, have.FilterSubjects, have.InactiveThreshold = want.FilterSubject, want.FilterSubjects, 0
	have.HeadersOnly, have.MaxRequestBatch, have.MaxRequestExpires, have.MaxRequestMaxBytes = false, 0, 0, 0
	have.PriorityPolicy, have.PriorityGroups, have.PinnedTTL = want.PriorityPolicy, want.PriorityGroups, want.PinnedTTL
	have.RateLimit, have.Metadata = 0, MarkOf(want.Metadata).over(have.Metadata)
	return have
}

// Same tells whether two configurations of a durable are equal, but for what the server that answered notes of itself.
func Same(a, b jetstream.ConsumerConfig) bool {
	own := func(c jetstream.ConsumerConfig) jetstream.ConsumerConfig {
		c.Metadata = maps.Clone(c.Metadata)
		maps.DeleteFunc(c.Metadata, func(name, _ string) bool { return strings.HasPrefix(name, "_nats.") })
		return c
	}
	return reflect.DeepEqual(own(a), own(b))
}

// IsHarmless tells of a difference whether no message is lost under it. Under inactive_threshold the server deletes the durable
// once nothing is pulled: to stop would be the harm.
func IsHarmless(difference string) bool {
	switch Setting(difference) {
	case "max_ack_pending", "rate_limit_bps", "max_batch", "max_expires", "max_bytes", "inactive_threshold":
		return true
	}
	return false
}

// Setting is the name of the setting that differs.
func Setting(difference string) string {
	name, _, _ := strings.Cut(difference, " is ")
	return name
}

// differences lists the settings under which relay would not work, or that are not what the configuration says; fixed
// ones the server does not change on a durable that exists.
func differences(have, want jetstream.ConsumerConfig) (changeable, fixed []string) {
	note := func(list *[]string, name string, same bool, has, wants any) {
		if !same {
			*list = append(*list, fmt.Sprintf("%s is %v, not %v", name, has, wants))
		}
	}
	note(&fixed, "ack_policy", have.AckPolicy == want.AckPolicy, have.AckPolicy, want.AckPolicy)
	note(&fixed, "replay_policy", have.ReplayPolicy == jetstream.ReplayInstantPolicy, have.ReplayPolicy, jetstream.ReplayInstantPolicy)
	note(&fixed, "mem_storage", !have.MemoryStorage, have.MemoryStorage, false)
	note(&changeable, "priority_policy", samePolicy(have, want), policyOf(have), policyOf(want))
	note(&changeable, "ack_wait", have.AckWait == want.AckWait, have.AckWait, want.AckWait)
	note(&changeable, "max_deliver", have.MaxDeliver == want.MaxDeliver, have.MaxDeliver, "unlimited (-1)")
	note(&changeable, "backoff", len(have.BackOff) == 0, have.BackOff, "empty")
	note(&changeable, "max_ack_pending", have.MaxAckPending == want.MaxAckPending, have.MaxAckPending, want.MaxAckPending)
	has, wants := Filters(have), Filters(want)
	note(&changeable, "filter_subjects", slices.Equal(has, wants), has, wants)
	note(&changeable, "inactive_threshold", have.InactiveThreshold == 0, have.InactiveThreshold, 0)
	note(&changeable, "headers_only", !have.HeadersOnly, have.HeadersOnly, false)
	note(&changeable, "rate_limit_bps", have.RateLimit == 0, have.RateLimit, 0)
	note(&changeable, "max_batch", have.MaxRequestBatch == 0, have.MaxRequestBatch, 0)
	note(&changeable, "max_expires", have.MaxRequestExpires == 0, have.MaxRequestExpires, 0)
	note(&changeable, "max_bytes", have.MaxRequestMaxBytes == 0, have.MaxRequestMaxBytes, 0)
	return changeable, fixed
}
