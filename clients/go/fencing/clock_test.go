package fencing

import (
	"testing"
	"time"
)

func TestTheClockOfThisMachineGoesOn(t *testing.T) {
	clock := newClock()
	before := clock()
	time.Sleep(20 * time.Millisecond)
	if passed := clock() - before; passed < 20*time.Millisecond || passed > 10*time.Second {
		t.Error(passed)
	}
}

// Without a clock that goes on while the machine sleeps, a lead of the time of day counts as time that has passed.
func TestTheTimeOfDayTellsThatTheMachineHasSlept(t *testing.T) {
	var awake, day time.Duration
	clock := newLeadingClock(func() time.Duration { return awake }, func() time.Duration { return day })
	for _, one := range []struct{ awake, day, read time.Duration }{
		{time.Second, time.Second, time.Second},
		{2 * time.Second, 2*time.Second + 10*time.Millisecond, 2 * time.Second}, // adjusted a little
		{3 * time.Second, time.Hour + 3*time.Second, time.Hour + 3*time.Second}, // slept, or set forward
		{4 * time.Second, 0, time.Hour + 4*time.Second},                         // set back: no time comes back
		{5 * time.Second, time.Second, time.Hour + 5*time.Second},
		{6 * time.Second, time.Minute + 2*time.Second, time.Hour + time.Minute + 6*time.Second},
	} {
		awake, day = one.awake, one.day
		if read := clock(); read < one.read-20*time.Millisecond || read > one.read+20*time.Millisecond {
			t.Errorf("after %v and %v: %v", one.awake, one.day, read)
		}
	}
}
