package fencing

import (
	"syscall"
	"time"
	"unsafe"
)

// clockBoottime goes on while the machine is suspended. The clock of package time stands still meanwhile.
const clockBoottime = 7

// newClock returns the clock of leases: CLOCK_BOOTTIME, or the portable one where the kernel does not have it.
func newClock() clock {
	if _, works := readBoottime(); !works {
		return newPortableClock()
	}
	return func() time.Duration {
		now, _ := readBoottime()
		return now
	}
}

func readBoottime() (time.Duration, bool) {
	var read syscall.Timespec
	_, _, failed := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&read)), 0)
	return time.Duration(read.Nano()), failed == 0
}
