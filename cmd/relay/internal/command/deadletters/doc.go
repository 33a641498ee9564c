// Package deadletters has the commands relay dlq and relay replay, and what the console does with dead letters: which ones are meant
// (the flags of a filter), listing and showing, replay as a job, discarding, export and import.
package deadletters
