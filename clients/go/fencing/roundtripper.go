package fencing

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
)

// HTTPClient returns an HTTP client that writes under the lock: see [Lock.RoundTripper].
func (l *Lock) HTTPClient() *http.Client { return &http.Client{Transport: l.RoundTripper(nil)} }

// RoundTripper returns a transport that writes under the lock. base sends the requests; nil is the client's own.
//
//   - Requests to the gateway carry the lock, and who the program is. Others carry nothing of it, also after a redirect.
//   - Nothing is sent under a lock that is lost: the error is then a [*LockLost].
//   - A request that the fence refuses is an error, a [*Stale], and the lock is lost. Other answers stay as they are.
//   - No write is sent twice. Without an answer, its error is an [*OutcomeUnknown].
//
// A request with its own Fencing-Token, such as a list for several locks, is sent with that.
func (l *Lock) RoundTripper(base http.RoundTripper) http.RoundTripper {
	if base == nil {
		base = l.client.api.transport
	}
	return &roundTripper{l, base}
}

type roundTripper struct {
	lock *Lock
	base http.RoundTripper
}

func (t *roundTripper) RoundTrip(given *http.Request) (*http.Response, error) {
	request, isOurs, err := t.prepared(given)
	if err != nil {
		if given.Body != nil {
			_ = given.Body.Close()
		}
		return nil, err
	}
	response, err := t.base.RoundTrip(request)
	if err != nil {
		if isOurs {
			err = t.withoutAnswer(request, err)
		}
		return nil, err
	}
	if isOurs && response.StatusCode == http.StatusPreconditionFailed {
		if refusal := refusalOf(response); isOfTheFence(refusal) {
			_ = response.Body.Close()
			if stale, isStale := refusal.(*Stale); isStale {
				t.lock.Overtaken(stale)
			}
			return nil, refusal
		}
	}
	return response, nil
}

// prepared returns the request as it leaves, and whether it is one to the gateway.
func (t *roundTripper) prepared(given *http.Request) (request *http.Request, isOurs bool, err error) {
	if err := t.lock.Check(); err != nil {
		return nil, false, err
	}
	request = given.Clone(given.Context())
	if originOf(request.URL) != t.lock.client.api.origin {
		for name := range request.Header {
			if isOfALock(name) {
				delete(request.Header, name)
			}
		}
		return request, false, nil
	}
	if request.Header.Get("Fencing-Token") == "" {
		for name, values := range t.lock.Header() {
			if request.Header.Get(name) == "" {
				request.Header[name] = values
			}
		}
	}
	if err := t.lock.client.api.present(request); err != nil {
		return nil, true, err
	}
	if !isRead(request.Method) {
		withoutReplay(request)
	}
	// The source of tokens may have taken its time.
	return request, true, t.lock.Check()
}

func isOfALock(name string) bool {
	for _, one := range headersOfALock {
		if http.CanonicalHeaderKey(name) == one {
			return true
		}
	}
	return false
}

// withoutReplay keeps http.Transport from sending a write again that may have left. It would do so for a request with
// the header Idempotency-Key, in this spelling.
func withoutReplay(request *http.Request) {
	for _, name := range []string{"Idempotency-Key", "X-Idempotency-Key"} {
		if values, isThere := request.Header[name]; isThere {
			delete(request.Header, name)
			request.Header[strings.ToLower(name)] = values
		}
	}
}

func isRead(method string) bool {
	return method == "" || method == http.MethodGet || method == http.MethodHead || method == http.MethodOptions
}

func (t *roundTripper) withoutAnswer(request *http.Request, err error) error {
	details := Details{
		Message: fmt.Sprintf("%s %s got no answer: %v.", request.Method, t.lock.client.api.url, err), cause: err,
	}
	if cause := context.Cause(request.Context()); cause != nil && !errors.Is(err, cause) {
		details.cause = errors.Join(err, cause)
	}
	if isRead(request.Method) || isUnsent(err) {
		details.Advice = "Try again."
		return &Unavailable{details}
	}
	details.Advice = "Read the current state, then write again with the same token."
	return &OutcomeUnknown{details}
}

// isUnsent reports whether no connection was made.
func isUnsent(err error) bool {
	var dialled *net.OpError
	return errors.As(err, &dialled) && dialled.Op == "dial"
}
