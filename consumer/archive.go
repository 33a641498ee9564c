package consumer

import (
	"cmp"
	"time"
)

// Archive says whether relay records the outcome of each message, so that it can be looked up later. Routes never wait for the
// archive: a record that finds no room is dropped and counted.
type Archive struct {
	// Outcomes has a record of each message kept in the stream <SERVICE>_ARCHIVE.
	Outcomes bool `koanf:"outcomes"`
	// Results has 4 KiB of what the handler returned kept with it, see [Msg.Reply], whether or not a caller waits.
	Results bool `koanf:"results"`
	// MaxAge is how long records are kept. Zero means 168h.
	MaxAge time.Duration `koanf:"max_age"`
	// MaxBytes bounds them: the oldest go. Zero means 256 MiB, which the server keeps free for them.
	MaxBytes Bytes `koanf:"max_bytes"`
	// MaxMsgs bounds the messages of the stream. Each of them holds the records of half a second, or of many messages. Zero
	// means no bound.
	MaxMsgs int `koanf:"max_msgs"`
}

// WithDefaults fills the zero fields.
func (a Archive) WithDefaults() Archive {
	a.MaxAge = cmp.Or(a.MaxAge, 168*time.Hour)
	a.MaxBytes = cmp.Or(a.MaxBytes, 256<<20)
	a.Results = a.Results && a.Outcomes
	return a
}
