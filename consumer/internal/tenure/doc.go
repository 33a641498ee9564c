// Package tenure is the claim of what one instance at a time works on: a durable and its routes. The others stand by: their durables are made and looked
// at, and nothing is pulled.
//
//	           has the claim         told to end          settled
//	stands by ───────────────▶ works ────────────▶ drains ──────────▶ over
//	                             │                    │                 ▲
//	                             └──── lease lost ────┴──▶ is fenced ───┘ settled
//
// A [Tenure] has the claim once. When it is over, whoever made it makes another one, which stands by.
//
// It works until others may have the claim, and not a moment longer: [Tenure.Has] looks at the clock, and is asked before each message. What was in hand is
// settled before the claim is given back, so that the next holder does not start what is done. Once the lease is lost nothing is waited for any more.
//
// How the instances agree on the claim is in internal/fleet. What the work is this package does not know.
package tenure
