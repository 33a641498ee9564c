package consumer

import "github.com/relaymq/relay/internal/partition"

// validatePartitions says what is wrong with them.
func (r Route) validatePartitions(fault func(format string, args ...any)) {
	switch {
	case r.Partitions == 0:
		return
	case r.Order != "key":
		fault("partitions: work only with order: key, whose order they keep over several instances")
	case r.Instances == InstancesOne:
		fault("partitions: cannot be combined with instances: one; remove one of the two")
	case len(r.Name) > partition.MaxRoute:
		fault("name: must be at most %d characters with partitions (got %d)", partition.MaxRoute, len(r.Name))
	}
	if err := r.inside(nil).Layout().Validate(); err != nil {
		fault("%w", err)
	}
}
