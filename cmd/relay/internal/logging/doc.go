// Package logging is how relay writes its log: lines for a person on a terminal, JSON elsewhere.
//
// Two things are promised of it. One record is one line, and holds no control byte but its line break (and the colours
// of the terminal): subjects, headers and error texts come from strangers, and may hold line breaks and terminal
// sequences. And a log never stops the work: a [Writer] between the logger and stderr keeps a bounded number of records
// for a reader that is slow or gone, then drops and counts.
package logging
