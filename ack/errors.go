package ack

import "errors"

var (
	// ErrSettled says that the delivery was settled before; nothing was sent.
	ErrSettled = errors.New("delivery is settled already")
	// ErrFenced says that the lease may be lost, and another instance at the message; nothing was sent. JetStream
	// delivers the message again.
	ErrFenced = errors.New("lease of the delivery may be lost")
)
