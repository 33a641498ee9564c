// Package inhand says what is in hand: which deliveries of a durable are neither settled nor given back, by number and bytes ([Count]) or by
// sequence ([Snapshot]).
package inhand
