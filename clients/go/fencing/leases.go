package fencing

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"regexp"
	"strings"
	"sync/atomic"
	"time"
)

const (
	// longestStretch is how long one request waits at most. Proxies give up on one after 60 seconds or less, and the
	// place in the queue stays.
	longestStretch = 20 * time.Second
	givingBack     = 5 * time.Second
	// arriving is how long a request may take to reach the gateway.
	arriving = time.Second
	// shortestTimeout and longestTimeout limit how long an acquire is repeated while the gateway cannot be reached.
	shortestTimeout = 2 * time.Second
	longestTimeout  = time.Minute
	forEver         = time.Duration(math.MaxInt64)
)

// wanted is one acquire. The gateway knows it by its request, however often it is sent.
type wanted struct {
	resource string
	holder   string
	ttl      time.Duration
	wait     time.Duration
	mode     Mode
	barrier  bool
	request  string
}

// leases is the lease service of the gateway.
type leases struct {
	api   *api
	clock clock
	// stretch is how long one request waits. The operator may let it wait for less.
	stretch atomic.Int64
}

func newLeases(api *api, clock clock) *leases {
	l := &leases{api: api, clock: clock}
	l.stretch.Store(int64(longestStretch))
	return l
}

// attempt is the state of one acquire. isUnclear tells whether a request may have been granted without our knowledge.
type attempt struct {
	wanted
	isUnclear bool
}

// acquire acquires the lock. After any error, neither a place in the queue nor a lease stays behind.
func (l *leases) acquire(ctx context.Context, wanted wanted) (grant, error) {
	if err := ended(ctx); err != nil {
		return grant{}, err
	}
	attempt := &attempt{wanted: wanted}
	got, err := l.acquired(ctx, attempt)
	if err != nil && attempt.isUnclear {
		l.withdraw(ctx, wanted)
	}
	return got, err
}

func (l *leases) acquired(ctx context.Context, attempt *attempt) (grant, error) {
	until := time.Now().Add(attempt.wait) // Beyond the largest time, it is the largest.
	timeout := min(max(attempt.wait, shortestTimeout), longestTimeout)
	giveUp, failures := time.Now().Add(timeout), 0
	for {
		stretch := min(time.Duration(l.stretch.Load()), max(time.Until(until), 0))
		got, err := l.once(ctx, attempt, stretch)
		if err == nil {
			return got, nil
		}
		if err := ended(ctx); err != nil {
			return grant{}, err
		}
		switch err := err.(type) {
		case *NotAcquired:
			if time.Until(until) <= 0 || err.isOwn() {
				return grant{}, err
			}
			giveUp, failures = time.Now().Add(timeout), 0
		case *Unavailable:
			failures++
			asked, _ := err.RetryAfter()
			pause := pauseAfter(failures, asked, rand.Float64())
			if time.Until(giveUp) <= pause {
				return grant{}, err
			}
			if !sleep(ctx, pause) {
				return grant{}, ended(ctx)
			}
		case *Refused:
			// The operator lets requests wait for less, and says so.
			if !strings.Contains(err.Message, "body.wait") || stretch < time.Second {
				return grant{}, err
			}
			l.stretch.Store(min(l.stretch.Load(), int64(stretch/2)))
		case *LockLost:
			// Granted, but the answer took longer than the grant lasts. The next one is a new grant.
			if time.Until(giveUp) <= 0 {
				return grant{}, &Unavailable{Details{
					Message: "Answers take longer than the lease lasts.", Advice: "Ask for a longer ttl.", cause: err,
				}}
			}
		default:
			return grant{}, err
		}
	}
}

func (l *leases) once(ctx context.Context, attempt *attempt, stretch time.Duration) (grant, error) {
	asked, sent := l.clock(), time.Now()
	view, err := l.posted(ctx, attempt, stretch)
	var refused *NotAcquired
	if errors.As(err, &refused) && !refused.isOwn() {
		// Refused before the time was over: it does not queue us, and must not be hammered either.
		sleep(ctx, min(time.Second, stretch-time.Since(sent)))
	}
	if err != nil {
		return grant{}, err
	}
	got, err := granted(view, attempt.wanted, asked)
	if err == nil && l.clock()-asked > attempt.ttl/5 {
		// It may have been granted long after it was asked for, and counts from then on: a short request tells better.
		return l.renew(ctx, got, attempt.wanted)
	}
	return got, err
}

// posted returns the answer. If the context ends, it lets the request arrive before a withdrawal can.
func (l *leases) posted(ctx context.Context, attempt *attempt, stretch time.Duration) (any, error) {
	content := map[string]any{
		"holder": attempt.holder, "ttl": attempt.ttl.Seconds(), "mode": attempt.mode, "request": attempt.request,
		"wait": stretch.Seconds(),
	}
	type answer struct {
		view any
		err  error
	}
	answered, sent := make(chan answer, 1), time.Now()
	asking, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	go func() {
		view, err := l.api.ask(asking, http.MethodPost, "/v1/leases/"+attempt.resource, content, stretch)
		answered <- answer{view, err}
	}()
	var got answer
	select {
	case got = <-answered:
	case <-ctx.Done():
		timer := time.NewTimer(max(arriving-time.Since(sent), 0))
		defer timer.Stop()
		select {
		case got = <-answered:
		case <-timer.C:
			end()
			got = <-answered
		}
	}
	var refusal Error
	isRefused := errors.As(got.err, &refusal) && refusal.Detail().Status >= 400 && !errors.Is(refusal, ErrUnavailable)
	keepsPlace := errors.Is(got.err, ErrNotAcquired) && stretch > 0
	if !isRefused || keepsPlace {
		attempt.isUnclear = true
	}
	return got.view, got.err
}

// renew renews the lease. The error is LockLost where the gateway says that it is lost.
func (l *leases) renew(ctx context.Context, held grant, wanted wanted) (grant, error) {
	asked := l.clock()
	content := map[string]any{"ttl": wanted.ttl.Seconds()}
	view, err := l.api.ask(ctx, http.MethodPut, pathOf(wanted.resource, held), content, 0)
	if err != nil {
		return grant{}, err
	}
	renewed, err := readLease(view, wanted, asked)
	if err == nil && renewed.lease != held.lease {
		err = unreadable(wanted.resource)
	}
	renewed.sequencer = held.sequencer
	return renewed, err
}

// release releases the lease. A failure is no error, because the lease ends by itself.
func (l *leases) release(ctx context.Context, held grant, wanted wanted) {
	l.giveBack(ctx, http.MethodDelete, pathOf(wanted.resource, held), nil)
}

func (l *leases) withdraw(ctx context.Context, wanted wanted) {
	content := map[string]any{"holder": wanted.holder, "request": wanted.request}
	l.giveBack(ctx, http.MethodPost, "/v1/withdrawals/"+wanted.resource, content)
}

func (l *leases) giveBack(ctx context.Context, method, path string, content any) {
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), givingBack)
	defer stop()
	_, _ = l.api.ask(ctx, method, path, content, 0)
}

// barrier raises the fence: once it has returned nil, nothing older takes effect. It repeats for ttl.
func (l *leases) barrier(ctx context.Context, held grant, wanted wanted) error {
	content := map[string]any{"token": held.token.String()}
	if wanted.mode == ExclusiveMode {
		content["holder"] = wanted.holder
	}
	if held.sequencer != "" {
		content["sequencer"] = held.sequencer
	}
	giveUp := time.Now().Add(wanted.ttl)
	for failures := 1; ; failures++ {
		view, err := l.api.ask(ctx, http.MethodPost, "/v1/fences/"+wanted.resource+"/barrier", content, 0)
		if err == nil {
			_, err = about(view, wanted.resource)
			return err
		}
		if err := ended(ctx); err != nil {
			return err
		}
		switch err := err.(type) {
		case *Stale:
			return l.behind(ctx, held, wanted, err)
		case *Unavailable:
			// A write of an older holder that is under way has to land first, or to be given up.
			asked, _ := err.RetryAfter()
			pause := pauseAfter(failures, asked, rand.Float64())
			if time.Until(giveUp) <= pause {
				return err
			}
			if !sleep(ctx, pause) {
				return ended(ctx)
			}
		default:
			return err
		}
	}
}

// behind returns the error for a refusal of a token that was just issued.
func (l *leases) behind(ctx context.Context, held grant, wanted wanted, refusal *Stale) error {
	if !l.isHeld(ctx, held, wanted) {
		return refusal
	}
	return &IssuerWentBackwards{Details{
		Message: fmt.Sprintf("The gateway says that %s holds %s with the token %s, but the fence is at %s already.",
			wanted.holder, wanted.resource, held.token, refusal.Fence()),
		Advice: "The counter of the lock service went back. Have an administrator start a new epoch of this resource, " +
			"then acquire again.",
		Code: refusal.Code, Status: refusal.Status, Facts: refusal.Facts,
	}}
}

func (l *leases) isHeld(ctx context.Context, held grant, wanted wanted) bool {
	answer, err := l.api.ask(ctx, http.MethodGet, "/v1/leases/"+wanted.resource, nil, 0)
	if err != nil {
		return false
	}
	view, _ := about(answer, wanted.resource)
	holders, _ := view["holders"].([]any)
	for _, each := range holders {
		one, _ := each.(map[string]any)
		if one["holder"] == any(wanted.holder) && one["token"] == any(held.token.String()) {
			return true
		}
	}
	return false
}

// Both become a part of later requests: a path and a header.
var (
	leaseGrammar     = regexp.MustCompile(`\A[0-9A-Za-z-]{1,64}\z`)
	sequencerGrammar = regexp.MustCompile(`\A[!-~]{1,1000}\z`)
)

// granted reads the answer to an acquire that was sent when the clock said asked.
func granted(view any, wanted wanted, asked time.Duration) (grant, error) {
	got, err := readLease(view, wanted, asked)
	if err != nil {
		return grant{}, err
	}
	switch sequencer := view.(map[string]any)["sequencer"].(type) {
	case nil:
	case string:
		if !sequencerGrammar.MatchString(sequencer) {
			return grant{}, unreadable(wanted.resource)
		}
		got.sequencer = sequencer
	default:
		return grant{}, unreadable(wanted.resource)
	}
	return got, nil
}

func readLease(answer any, wanted wanted, asked time.Duration) (grant, error) {
	view, err := about(answer, wanted.resource)
	if err != nil {
		return grant{}, err
	}
	// A token that is a number is none: many readers of JSON round the large ones.
	text, _ := view["token"].(string)
	token, err := ParseToken(text)
	lease, _ := view["lease"].(string)
	seconds, isNumber := secondsOf(view["expires_in"])
	if err != nil || !leaseGrammar.MatchString(lease) || !isNumber {
		return grant{}, unreadable(wanted.resource)
	}
	// It never lasts for longer than it was asked for.
	lasting := min(max(durationOf(seconds), 0), wanted.ttl)
	return grant{token: token, lease: lease, validUntil: asked + lasting}, nil
}

func unreadable(resource string) error {
	return &Refused{Details{
		Message: fmt.Sprintf("The answer about the lease of %s cannot be read.", resource),
		Advice:  "A proxy on the way may change answers, or the server is not a fencing gateway.",
		Status:  http.StatusOK,
	}}
}

func pathOf(resource string, held grant) string { return "/v1/leases/" + resource + "/" + held.lease }

// ended returns why a context has ended, with its cause; nil while it has not.
func ended(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if err == nil || errors.Is(cause, err) {
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}
