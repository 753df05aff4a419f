package fencing

import (
	"context"
	"math"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"
)

const (
	firstPause   = 50 * time.Millisecond
	longestPause = time.Second
	// mostAsked is how much of Retry-After counts. A queue keeps the place of a client that is away for 5 seconds.
	mostAsked    = 2 * time.Second
	mostOfAnAsk  = 24 * time.Hour
	dateOfHeader = "Mon, 02 Jan 2006 15:04:05 GMT"
)

var wholeSeconds = regexp.MustCompile(`\A[0-9]{1,18}\z`)

// pauseAfter returns the time to wait after so many failures in a row, from 1 on. The random number draw, from 0 to
// 1, keeps clients that failed together from coming back together.
func pauseAfter(failures int, asked time.Duration, draw float64) time.Duration {
	doubled := min(time.Duration(float64(firstPause)*math.Pow(2, float64(min(failures-1, 16)))), longestPause)
	return max(time.Duration(float64(doubled)*(0.5+draw/2)), min(asked, mostAsked))
}

// retryAfter returns the time that an answer asks the client to wait. A date counts from the Date of the same answer,
// so that no two clocks are compared.
func retryAfter(header http.Header) (time.Duration, bool) {
	asked := strings.Trim(header.Get("Retry-After"), " \t")
	if wholeSeconds.MatchString(asked) {
		seconds, err := strconv.ParseInt(asked, 10, 64)
		return time.Duration(min(seconds, int64(mostOfAnAsk/time.Second))) * time.Second, err == nil
	}
	until, err := time.Parse(dateOfHeader, asked)
	if err != nil {
		return 0, false
	}
	now, err := time.Parse(dateOfHeader, strings.Trim(header.Get("Date"), " \t"))
	if err != nil {
		return 0, false
	}
	return min(max(until.Sub(now), 0), mostOfAnAsk), true
}

// sleep waits, and returns false if the context ended before.
func sleep(ctx context.Context, duration time.Duration) bool {
	if ctx.Err() != nil {
		return false
	}
	timer := time.NewTimer(max(duration, 0))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
