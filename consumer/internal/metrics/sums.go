package metrics

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// sums are metrics, each once: those of the parts of a route together. The zero value is ready.
type sums struct {
	list  []*sum
	index map[string]*sum
}

type sum struct {
	desc   *prometheus.Desc
	kind   prometheus.ValueType
	labels []string
	value  float64
}

func (s *sums) add(d *prometheus.Desc, kind prometheus.ValueType, join func(a, b float64) float64, v float64, labels ...string) {
	key := fmt.Sprintf("%p%q", d, labels)
	if was := s.index[key]; was != nil {
		was.value = join(was.value, v)
		return
	}
	if s.index == nil {
		s.index = make(map[string]*sum)
	}
	s.index[key] = &sum{d, kind, labels, v}
	s.list = append(s.list, s.index[key])
}

func (s *sums) collect(ch chan<- prometheus.Metric) {
	for _, m := range s.list {
		ch <- prometheus.MustNewConstMetric(m.desc, m.kind, m.value, m.labels...)
	}
}

func (s *sums) counter(d *prometheus.Desc, v uint64, labels ...string) {
	s.add(d, prometheus.CounterValue, plus, float64(v), labels...)
}

func (s *sums) gauge(d *prometheus.Desc, v int, labels ...string) {
	s.add(d, prometheus.GaugeValue, plus, float64(v), labels...)
}

// extreme is a gauge that is not added up, but the smallest or largest of all.
func (s *sums) extreme(d *prometheus.Desc, which func(a, b float64) float64, v int, labels ...string) {
	s.add(d, prometheus.GaugeValue, which, float64(v), labels...)
}

func plus(a, b float64) float64 { return a + b }

func one(yes bool) int {
	if yes {
		return 1
	}
	return 0
}
