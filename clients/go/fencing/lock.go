package fencing

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"
)

const (
	// longestTick is the longest time between two looks at the clock. Timers stand still while the machine is suspended.
	longestTick  = time.Second
	shortestTick = 20 * time.Millisecond
)

// Lock is a lock that is held. It is renewed in the background until [Lock.Release], or until it is lost. It may be used
// by any number of goroutines.
type Lock struct {
	client *Client
	wanted wanted
	hold   *hold
	ctx    context.Context
	lose   context.CancelCauseFunc
	stop   context.CancelFunc
	keeper sync.WaitGroup
	once   sync.Once
}

// Lock acquires a lock, does the work, and releases the lock.
//
// The context of the work is derived from ctx. It is cancelled when the lock is lost, with a [*LockLost] as its cause.
// Then Lock returns that error, even if the work has returned nil: it cannot know whether all of it was done under the
// lock. Errors of the work stay as they are, unless the loss has cancelled it.
func (c *Client) Lock(
	ctx context.Context, resource string, work func(ctx context.Context, lock *Lock) error, options ...LockOption,
) error {
	lock, err := c.acquire(ctx, ctx, resource, options)
	if err != nil {
		return err
	}
	defer lock.Release()
	err = work(lock.ctx, lock)
	loss := lock.hold.loss()
	switch {
	case loss == nil || errors.Is(err, ErrLockLost):
		return err
	case err == nil:
		return loss
	case errors.Is(err, context.Canceled) && ctx.Err() == nil:
		return fmt.Errorf("%w (%w)", loss, err)
	default:
		return err
	}
}

// Acquire acquires a lock that the program releases. ctx is for the acquisition alone: [Lock.Context] keeps its values,
// and does not end with it.
//
// The errors are [*NotAcquired], [*Unavailable], [*Refused], [*Implausible], [*IssuerWentBackwards] and [*Stale], and
// that of the context. After any of them, neither a lease nor a place in the queue stays behind.
func (c *Client) Acquire(ctx context.Context, resource string, options ...LockOption) (*Lock, error) {
	return c.acquire(ctx, context.WithoutCancel(ctx), resource, options)
}

func (c *Client) acquire(ctx, outer context.Context, resource string, options []LockOption) (*Lock, error) {
	wanted, err := c.wanted(resource, options)
	if err != nil {
		return nil, err
	}
	got, err := c.leases.acquire(ctx, wanted)
	if err != nil {
		return nil, err
	}
	lock := newLock(c, wanted, got, outer)
	if wanted.barrier {
		err = lock.Barrier(ctx)
	}
	if err == nil {
		err = lock.Check()
	}
	if err == nil {
		err = ended(ctx)
	}
	if err != nil {
		lock.Release()
		return nil, err
	}
	return lock, nil
}

func newLock(client *Client, wanted wanted, got grant, outer context.Context) *Lock {
	lock := &Lock{client: client, wanted: wanted}
	lock.ctx, lock.lose = context.WithCancelCause(outer)
	var keeping context.Context
	keeping, lock.stop = context.WithCancel(context.WithoutCancel(outer))
	lock.hold = &hold{
		resource: wanted.resource, ttl: wanted.ttl, clock: client.leases.clock, grant: got,
		lost: func(loss *LockLost) {
			lock.lose(loss)
			lock.stop()
		},
	}
	lock.keeper.Go(func() { lock.watch(keeping) })
	lock.keeper.Go(func() { lock.renew(keeping) })
	return lock
}

// watch looks at the clock until the lock is lost.
func (l *Lock) watch(ctx context.Context) {
	tick := min(longestTick, max(shortestTick, l.wanted.ttl/20))
	for l.hold.loss() == nil && sleep(ctx, min(l.hold.left(), tick)) {
	}
}

// renew renews the lease until the lock is lost.
func (l *Lock) renew(ctx context.Context) {
	pause := l.hold.left() / 3
	for sleep(ctx, pause) && l.hold.loss() == nil {
		pause = l.renewOnce(ctx)
	}
}

func (l *Lock) renewOnce(ctx context.Context) time.Duration {
	left := l.hold.left()
	attempt, stop := context.WithTimeout(ctx, max(left/2, 50*time.Millisecond))
	defer stop()
	renewed, err := l.client.leases.renew(attempt, l.hold.granted(), l.wanted)
	if err == nil {
		return l.hold.renewed(renewed)
	}
	return l.hold.failed(err, left)
}

// Release gives the lock back, and returns within 5 seconds. Nothing can be written under the lock afterwards. A failure
// is no error: the lease ends by itself. Calling it again does nothing.
func (l *Lock) Release() {
	l.once.Do(func() {
		l.hold.lose(LostReleased, fmt.Sprintf("The lock %s has been released.", l.wanted.resource), nil)
		l.stop()
		l.keeper.Wait()
		l.client.leases.release(l.ctx, l.hold.granted(), l.wanted)
	})
}

// Context returns a context that is cancelled when the lock is lost or released. Its cause is then a [*LockLost].
func (l *Lock) Context() context.Context { return l.ctx }

// Check returns a [*LockLost] if the lock is lost, by the clock as it stands. It sends nothing.
func (l *Lock) Check() error {
	if loss := l.hold.loss(); loss != nil {
		return loss
	}
	return nil
}

// ExpiresIn returns for how long the lock is held if it is not renewed, and 0 if it is lost.
func (l *Lock) ExpiresIn() time.Duration { return l.hold.left() }

// Resource returns the name of the lock.
func (l *Lock) Resource() string { return l.wanted.resource }

// Holder returns the name of the holder.
func (l *Lock) Holder() string { return l.wanted.holder }

// Mode returns whether the lock is exclusive or shared.
func (l *Lock) Mode() Mode { return l.wanted.mode }

// Token returns the fencing token.
func (l *Lock) Token() Token { return l.hold.granted().token }

// Sequencer returns the signed form of the token, or "" if the gateway has no signing key.
func (l *Lock) Sequencer() string { return l.hold.granted().sequencer }

// Client returns the client of the lock.
func (l *Lock) Client() *Client { return l.client }

// Barrier raises the fence to the token of the lock. Once it has returned nil, no request of an older holder takes
// effect, so what the program reads stays true. [Client.Acquire] and [Client.Lock] call it.
func (l *Lock) Barrier(ctx context.Context) error {
	if err := l.Check(); err != nil {
		return err
	}
	raising, end := context.WithCancelCause(ctx)
	defer end(nil)
	defer context.AfterFunc(l.ctx, func() { end(context.Cause(l.ctx)) })()
	err := l.client.leases.barrier(raising, l.hold.granted(), l.wanted)
	if refusal := (*Stale)(nil); errors.As(err, &refusal) {
		l.Overtaken(refusal)
		return err
	}
	if loss := l.hold.loss(); loss != nil && ctx.Err() == nil {
		return loss
	}
	return err
}

// Overtaken notes that the fence has refused a write. A program that sends the token by other means calls it. Refusals
// that name another resource do not count.
func (l *Lock) Overtaken(refusal *Stale) { l.hold.overtaken(refusal) }

var headersOfALock = []string{"Fencing-Token", "Fencing-Resource", "Fencing-Holder", "Fencing-Sequencer"}

// Header returns the headers of a request to the gateway under the lock.
func (l *Lock) Header() http.Header {
	header := http.Header{}
	for i, value := range []string{l.Token().String(), l.Resource(), l.shownHolder(), l.Sequencer()} {
		if value != "" {
			header.Set(headersOfALock[i], value)
		}
	}
	return header
}

// shownHolder returns the name that a write carries. Shared holders share the token, so they name no holder.
func (l *Lock) shownHolder() string {
	if l.wanted.mode == SharedMode {
		return ""
	}
	return l.wanted.holder
}

// PostgresSettings returns the settings of a PostgreSQL session that writes guarded tables under the lock, as parameters
// of its start. The barrier has to have been raised. After the end of the lock, the guard refuses the session's writes
// as soon as there is a newer holder.
func (l *Lock) PostgresSettings() map[string]string {
	settings := map[string]string{"fencing.resource": l.Resource(), "fencing.token": l.Token().String()}
	if holder := l.shownHolder(); holder != "" {
		settings["fencing.holder"] = holder
	}
	return settings
}
