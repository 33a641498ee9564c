package consumer

import "github.com/relaymq/relay/consumer/internal/stores"

// stores is what this says of relay's own streams and buckets.
func (c Config) stores() stores.Config {
	own := stores.Config{Service: c.Service, Instance: c.Instance, Replicas: c.Replicas, Letters: stores.Letters{
		Bounds: stores.Bounds{Age: c.DLQ.MaxAge, Bytes: c.DLQ.MaxBytes, Messages: c.DLQ.MaxMsgs}, OnFull: c.DLQ.OnFull,
	}}
	if e := c.Events; e.Store {
		own.Events = &stores.Bounds{Age: e.MaxAge, Bytes: int64(e.MaxBytes), Messages: int64(e.MaxMsgs)}
	}
	if a := c.Archive; a.Outcomes {
		own.Archive = &stores.Bounds{Age: a.MaxAge, Bytes: int64(a.MaxBytes), Messages: int64(a.MaxMsgs)}
	}
	return own
}
