package provision

import (
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/subject"
)

const (
	// MaxAckPending is set on every durable. Delayed NAKs count against it, and it holds no memory by itself.
	MaxAckPending = 65_536
	// maxWaiting pulls of all instances may be parked at once; it cannot be changed later, and above it pulls are dropped
	// without a word.
	maxWaiting = 512
)

// Durable is what one configuration says of a durable.
type Durable struct {
	Name    string
	AckWait time.Duration
	// Pinned durables serve the pulls of one client at a time.
	Pinned bool
	// Mark has the routes of this configuration, with their subjects.
	Mark Mark
	// Start is where it begins when it is made.
	Start Start
	// Filtered durables have their subjects as a filter, even when these are all that their stream holds.
	Filtered bool
	// FormerAckWait is an AckWait that relay may change by itself, on a durable that it made; zero: none.
	FormerAckWait time.Duration
}

// Start is where a durable begins: with all that the stream holds, unless a policy says otherwise.
type Start struct {
	Policy jetstream.DeliverPolicy
	Seq    uint64     // for DeliverByStartSequencePolicy
	Since  *time.Time // for DeliverByStartTimePolicy
}

// Wanted is the configuration of the durable on a stream of these subjects.
func (d Durable) Wanted(streamSubjects []string) jetstream.ConsumerConfig {
	return d.wanted(streamSubjects, d.Mark)
}

func (d Durable) wanted(streamSubjects []string, m Mark) jetstream.ConsumerConfig {
	c := jetstream.ConsumerConfig{
		Durable:       d.Name,
		AckPolicy:     jetstream.AckExplicitPolicy,
		AckWait:       d.AckWait,
		MaxDeliver:    -1,
		MaxAckPending: MaxAckPending,
		MaxWaiting:    maxWaiting,
		DeliverPolicy: d.Start.Policy,
		OptStartSeq:   d.Start.Seq,
		OptStartTime:  d.Start.Since,
		Metadata:      m.over(nil),
	}
	if d.Pinned {
		pin(&c)
	}
	patterns := m.Patterns()
	// A filter costs nine tenths of the rate on a stream of many subjects, even one that matches everything.
	all := !slices.ContainsFunc(streamSubjects, func(held string) bool {
		return !slices.ContainsFunc(patterns, func(p string) bool { return subject.Covers(p, held) })
	})
	if !all || len(streamSubjects) == 0 || d.Filtered {
		setFilters(&c, patterns)
	}
	return c
}

func setFilters(c *jetstream.ConsumerConfig, patterns []string) {
	c.FilterSubject, c.FilterSubjects = "", nil
	if len(patterns) == 1 {
		c.FilterSubject = patterns[0]
	} else {
		c.FilterSubjects = patterns
	}
}

// Filters are the subjects that a durable filters, sorted; none: it gets all.
func Filters(c jetstream.ConsumerConfig) []string {
	list := slices.Clone(c.FilterSubjects)
	if c.FilterSubject != "" {
		list = append(list, c.FilterSubject)
	}
	slices.Sort(list)
	return list
}
