//go:build !linux

package fencing

// newClock returns the clock of leases.
func newClock() clock { return newPortableClock() }
