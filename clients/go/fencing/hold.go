package fencing

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// grant is a lease, as an answer has granted or renewed it.
type grant struct {
	token      Token
	lease      string
	sequencer  string
	validUntil time.Duration
}

// hold is one hold of a lock: valid until a reading of the clock, lost once and for ever. It starts nothing and sends
// nothing.
type hold struct {
	resource string
	ttl      time.Duration
	clock    clock
	// lost is called once, when the hold is lost. It must not block.
	lost func(*LockLost)

	mutex   sync.Mutex
	grant   grant
	failure *LockLost
	trouble error
}

// left returns for how long the lock is certainly held, and 0 if it is lost. One percent is left unused, because no two
// clocks run at the same speed.
func (h *hold) left() time.Duration {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	if h.failure != nil {
		return 0
	}
	return max(h.remaining(), 0)
}

func (h *hold) remaining() time.Duration { return h.grant.validUntil - h.clock() - h.ttl/100 }

// loss returns why the lock is lost, by what is known and by the clock as it stands; nil while it is held.
func (h *hold) loss() *LockLost {
	h.mutex.Lock()
	isOver := h.failure == nil && h.remaining() <= 0
	failure, trouble := h.failure, h.trouble
	h.mutex.Unlock()
	if !isOver {
		return failure
	}
	return h.lose(LostLate, fmt.Sprintf("The lock %s was not renewed in time.", h.resource), trouble)
}

// lose marks the lock as lost, and returns why it is. Only the first reason counts.
func (h *hold) lose(reason LossReason, message string, cause error) *LockLost {
	failure := &LockLost{Reason: reason, Details: Details{
		Message: message, Advice: "Stop working under its token, and acquire the lock again.", cause: cause,
	}}
	var known Error
	if errors.As(cause, &known) {
		failure.Code, failure.Facts = known.Detail().Code, known.Detail().Facts
	}
	h.mutex.Lock()
	isFirst := h.failure == nil
	if isFirst {
		h.failure = failure
	}
	failure = h.failure
	h.mutex.Unlock()
	if isFirst {
		h.lost(failure)
	}
	return failure
}

// overtaken notes that the fence has refused a write.
func (h *hold) overtaken(refusal *Stale) {
	if resource := refusal.Resource(); resource == "" || resource == h.resource {
		h.lose(LostStale, fmt.Sprintf("The lock %s has been taken over.", h.resource), refusal)
	}
}

func (h *hold) granted() grant {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	return h.grant
}

// renewed notes a renewal, and returns the time until the next one.
func (h *hold) renewed(renewed grant) time.Duration {
	if renewed.token != h.granted().token {
		h.lose(LostToken, fmt.Sprintf("The lock %s came back from its renewal with another token.", h.resource), nil)
	} else if h.loss() == nil {
		h.mutex.Lock()
		h.grant, h.trouble = renewed, nil
		h.mutex.Unlock()
	}
	h.loss()
	return h.left() / 3
}

// failed notes a renewal that has failed, and returns the time until the next one. left is what there was before it.
func (h *hold) failed(err error, left time.Duration) time.Duration {
	var gone *LockLost
	if errors.As(err, &gone) {
		h.lose(LostRefused, fmt.Sprintf("The lock %s is lost: %s", h.resource, gone.Message), gone)
	}
	h.mutex.Lock()
	h.trouble = err
	h.mutex.Unlock()
	return min(max(left/10, 50*time.Millisecond), time.Second)
}
