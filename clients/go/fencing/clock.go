package fencing

import (
	"sync"
	"time"
)

// clock returns the time since some moment in the past. It never goes backwards, and goes on while the machine is
// suspended.
type clock func() time.Duration

// newLeadingClock returns a clock for systems whose monotonic clock may stand still while the machine is suspended. It
// compares that one with the time of day: a lead of the latter counts as time that has passed.
func newLeadingClock(monotonic, timeOfDay clock) clock {
	var mutex sync.Mutex
	var read, lead time.Duration
	last, lastDay := monotonic(), timeOfDay()
	return func() time.Duration {
		mutex.Lock()
		defer mutex.Unlock()
		now, day := monotonic(), timeOfDay()
		passed := now - last
		// An adjustment of the time of day by a few milliseconds is no sleep.
		if ahead := (day - lastDay) - passed; ahead > 50*time.Millisecond {
			lead += ahead
		}
		last, lastDay = now, day
		read = max(read, now+lead)
		return read
	}
}

// newPortableClock returns the clock of systems without CLOCK_BOOTTIME.
func newPortableClock() clock {
	began := time.Now()
	return newLeadingClock(
		func() time.Duration { return time.Since(began) },
		func() time.Duration { return time.Duration(time.Now().UnixNano()) },
	)
}
