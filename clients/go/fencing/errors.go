package fencing

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
	"time"
)

// The kinds of errors, for [errors.Is]. Each has a type of the same name for [errors.As].
var (
	// ErrStale: the fence has refused the token, because a newer holder has taken over. Sending it again is pointless.
	ErrStale = errors.New("fencing: the token is stale")
	// ErrLockLost: the lock is not held any more.
	ErrLockLost = errors.New("fencing: the lock is lost")
	// ErrIssuerWentBackwards: the fence is ahead of a token that was just issued. A person has to repair the issuer.
	ErrIssuerWentBackwards = errors.New("fencing: the issuer of tokens went backwards")
	// ErrNotAcquired: another holder has the lock.
	ErrNotAcquired = errors.New("fencing: the lock was not acquired")
	// ErrUnavailable: nothing was done. The same request may be sent again.
	ErrUnavailable = errors.New("fencing: unavailable")
	// ErrOutcomeUnknown: a write may have taken effect. Read before writing again.
	ErrOutcomeUnknown = errors.New("fencing: the outcome is unknown")
	// ErrImplausible: the policy of the resource does not accept the token.
	ErrImplausible = errors.New("fencing: the token is implausible")
	// ErrRefused: any other refusal. The advice of the error says what to change.
	ErrRefused = errors.New("fencing: refused")
)

// Error is implemented by all errors that this package makes from answers, and from their absence.
type Error interface {
	error
	// Detail returns what all of these errors have.
	Detail() *Details
	// Retryable reports whether the same request may be sent again without a look at what has happened.
	Retryable() bool
}

// Details are the common part of all errors.
type Details struct {
	Message string
	// Advice is the next step.
	Advice string
	// Code is the gateway's, or "" if the error is not from the gateway.
	Code string
	// Status is the status of the answer, or 0 if there was none.
	Status int
	// Facts are the machine-readable particulars of the answer. Its numbers are of the type json.Number.
	Facts map[string]any

	retryAfter time.Duration
	asksToWait bool
	cause      error
}

// Error returns the message and the advice.
func (d *Details) Error() string { return strings.TrimRight("fencing: "+d.Message+" "+d.Advice, " ") }

// Unwrap returns the reason of the error, if another error is its reason.
func (d *Details) Unwrap() error { return d.cause }

// Detail returns the details themselves.
func (d *Details) Detail() *Details { return d }

// Retryable reports false: most refusals are final.
func (d *Details) Retryable() bool { return false }

// RetryAfter returns how long the answer asks the client to wait, if it does.
func (d *Details) RetryAfter() (time.Duration, bool) { return d.retryAfter, d.asksToWait }

// text returns a fact that is a text. Anything else is not from a gateway: a number may have lost digits.
func (d *Details) text(name string) string {
	text, _ := d.Facts[name].(string)
	return text
}

// Stale says that the fence has refused the token. Nothing was written, and the refusal is on record.
type Stale struct{ Details }

// Is reports whether target is [ErrStale].
func (*Stale) Is(target error) bool { return target == ErrStale }

// Resource returns the name of the fence, or "" if the answer does not name it.
func (e *Stale) Resource() string { return e.text("resource") }

// Token returns the token that was refused, as it was sent.
func (e *Stale) Token() string { return e.text("token") }

// Fence returns the token that has overtaken it.
func (e *Stale) Fence() string { return e.text("fence") }

// RaisedBy returns the holder, or else the caller, that has raised the fence.
func (e *Stale) RaisedBy() string { return e.text("raised_by") }

// RaisedAt returns when the fence was raised, by the clock of the database (RFC 3339).
func (e *Stale) RaisedAt() string { return e.text("raised_at") }

// Rejection returns the number of the refusal's record: GET /v1/rejections.
func (e *Stale) Rejection() string { return e.text("rejection") }

// LossReason tells why a lock is lost.
type LossReason string

// The reasons for a loss. The first one counts.
const (
	LostLate     LossReason = "late"     // It was not renewed in time, by the clock.
	LostRefused  LossReason = "refused"  // A renewal was refused.
	LostStale    LossReason = "stale"    // The fence has refused a write.
	LostToken    LossReason = "token"    // A renewal came back with another token.
	LostReleased LossReason = "released" // The program has released it.
	LostGone     LossReason = "gone"     // An answer of the gateway says so.
)

// LockLost says that the lock is not held any more. It wraps its reason: the refusal, or the trouble of the last renewal.
type LockLost struct {
	Details
	Reason LossReason
}

// Is reports whether target is [ErrLockLost].
func (*LockLost) Is(target error) bool { return target == ErrLockLost }

// IssuerWentBackwards says that the fence is ahead of a token that was just issued, although the lease is held.
type IssuerWentBackwards struct{ Details }

// Is reports whether target is [ErrIssuerWentBackwards].
func (*IssuerWentBackwards) Is(target error) bool { return target == ErrIssuerWentBackwards }

// NotAcquired says that another holder has the lock, and kept it for the whole time to wait.
type NotAcquired struct{ Details }

// Is reports whether target is [ErrNotAcquired].
func (*NotAcquired) Is(target error) bool { return target == ErrNotAcquired }

// Retryable reports true: the lock may be free later.
func (*NotAcquired) Retryable() bool { return true }

// Resource returns the name of the lock.
func (e *NotAcquired) Resource() string { return e.text("resource") }

// Holder returns the name of the holder, or "" if it is not known.
func (e *NotAcquired) Holder() string { return e.text("holder") }

// ExpiresIn returns the time until its lease ends without a renewal, if it is known.
func (e *NotAcquired) ExpiresIn() (time.Duration, bool) {
	seconds, known := secondsOf(e.Facts["expires_in"])
	return durationOf(seconds), known
}

// isOwn reports whether the lock is held by this very holder, which shares it. Waiting would be waiting for itself.
func (e *NotAcquired) isOwn() bool { return e.Facts["own"] == true }

// Unavailable says that the gateway cannot be reached, or cannot work just now. Nothing was done.
type Unavailable struct{ Details }

// Is reports whether target is [ErrUnavailable].
func (*Unavailable) Is(target error) bool { return target == ErrUnavailable }

// Retryable reports true.
func (*Unavailable) Retryable() bool { return true }

// OutcomeUnknown says that a write may have taken effect, or not.
type OutcomeUnknown struct{ Details }

// Is reports whether target is [ErrOutcomeUnknown].
func (*OutcomeUnknown) Is(target error) bool { return target == ErrOutcomeUnknown }

// Implausible says that the gateway's policy refuses the token as one that cannot have been issued.
type Implausible struct{ Details }

// Is reports whether target is [ErrImplausible].
func (*Implausible) Is(target error) bool { return target == ErrImplausible }

// Refused is any other refusal.
type Refused struct{ Details }

// Is reports whether target is [ErrRefused].
func (*Refused) Is(target error) bool { return target == ErrRefused }

// secondsOf returns a duration from an answer: a finite JSON number.
func secondsOf(value any) (float64, bool) {
	number, isNumber := value.(json.Number)
	if !isNumber {
		return 0, false
	}
	seconds, err := number.Float64()
	return seconds, err == nil && !math.IsInf(seconds, 0) && !math.IsNaN(seconds)
}

// durationOf returns so many seconds, at most those of a century.
func durationOf(seconds float64) time.Duration {
	const century = 100 * 366 * 24 * 3600
	return time.Duration(min(max(seconds, -century), century) * float64(time.Second))
}
