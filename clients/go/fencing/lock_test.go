package fencing

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// service is the lease service of a gateway, in memory: in a bubble of synctest its time passes at once. A bubble also
// ends only when every goroutine and timer of the lock has ended.
type service struct {
	mutex sync.Mutex
	asked []string
	sent  []map[string]any
	// special answers a request in another way; nil, nil leaves it as it is.
	special func(request *http.Request) (*http.Response, error)
}

func (s *service) RoundTrip(request *http.Request) (*http.Response, error) {
	var content map[string]any
	if request.Body != nil {
		text, _ := io.ReadAll(request.Body)
		_ = json.Unmarshal(text, &content)
		_ = request.Body.Close()
	}
	s.mutex.Lock()
	s.asked = append(s.asked, request.Method+" "+request.URL.Path)
	s.sent = append(s.sent, content)
	special := s.special
	s.mutex.Unlock()
	if special != nil {
		if response, err := special(request); response != nil || err != nil {
			return response, err
		}
	}
	switch {
	case request.Method == http.MethodDelete || strings.HasPrefix(request.URL.Path, "/v1/withdrawals/"):
		return answer{Status: 204}.response(request), nil
	case strings.HasPrefix(request.URL.Path, "/v1/fences/"):
		return answer{Status: 200, Body: `{"resource": "job/42"}`}.response(request), nil
	case strings.HasPrefix(request.URL.Path, "/v1/leases/"):
		return leaseAnswer("7").response(request), nil
	}
	return answer{Status: 200, Body: "[]"}.response(request), nil
}

func (s *service) count(prefix string) (count int) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for _, one := range s.asked {
		if strings.HasPrefix(one, prefix) {
			count++
		}
	}
	return count
}

func (s *service) does(special func(*http.Request) (*http.Response, error)) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.special = special
}

func leaseAnswer(token string) answer {
	return answer{Status: 200, Body: `{"resource": "job/42", "lease": "a-lease", "holder": "host-7", "mode": "exclusive",
		"token": "` + token + `", "sequencer": null, "expires_in": 30.0}`}
}

// machine is a service, a client of it, and a clock that can be suspended.
type machine struct {
	*service
	*Client
	mutex sync.Mutex
	slept time.Duration
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	m := &machine{service: &service{}}
	began := time.Now()
	clock := func() time.Duration {
		m.mutex.Lock()
		defer m.mutex.Unlock()
		return time.Since(began) + m.slept
	}
	client, err := New("https://gateway.example", WithTransport(m.service), withClock(clock), WithAPIKey("a secret"))
	if err != nil {
		t.Fatal(err)
	}
	m.Client = client
	return m
}

// suspend lets time pass that no timer notices.
func (m *machine) suspend(duration time.Duration) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	m.slept += duration
}

func isRenewal(request *http.Request) bool {
	return request.Method == http.MethodPut && strings.HasPrefix(request.URL.Path, "/v1/leases/")
}

// renewals answers renewals.
func renewals(answer func(*http.Request) (*http.Response, error)) func(*http.Request) (*http.Response, error) {
	return func(request *http.Request) (*http.Response, error) {
		if !isRenewal(request) {
			return nil, nil
		}
		return answer(request)
	}
}

func always(answer answer) func(*http.Request) (*http.Response, error) {
	return func(request *http.Request) (*http.Response, error) { return answer.response(request), nil }
}

func silence(request *http.Request) (*http.Response, error) {
	<-request.Context().Done()
	return nil, request.Context().Err()
}

func TestItIsRenewedAndReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t)
		err := m.Lock(t.Context(), "job/42", func(ctx context.Context, lock *Lock) error {
			same(t, "token", lock.Token().String(), "7")
			time.Sleep(10 * time.Minute)
			if left := lock.ExpiresIn(); left <= 0 || left >= 30*time.Second {
				t.Error(left)
			}
			return errors.Join(lock.Check(), ctx.Err())
		})
		if err != nil {
			t.Fatal(err)
		}
		same(t, "barriers", m.count("POST /v1/fences/job/42/barrier"), 1)
		if renewed := m.count("PUT"); renewed < 50 || renewed > 70 {
			t.Errorf("renewed %d times in 600 seconds", renewed)
		}
		same(t, "releases", m.count("DELETE /v1/leases/job/42/a-lease"), 1)
		same(t, "the last request", m.asked[len(m.asked)-1], "DELETE /v1/leases/job/42/a-lease")
	})
}

func TestTheWorkEndsWhenTheLockIsLost(t *testing.T) {
	for name, one := range map[string]struct {
		answer func(*http.Request) (*http.Response, error)
		reason LossReason
		within time.Duration
	}{
		"refused":     {always(answer{Status: 410, Body: `{"code": "lease-lost", "detail": "x"}`}), LostRefused, 11 * time.Second},
		"other token": {always(leaseAnswer("8")), LostToken, 11 * time.Second},
		"silence":     {silence, LostLate, 30 * time.Second},
		"bad gateway": {always(answer{Status: 502, Body: "<html>"}), LostLate, 30 * time.Second},
		"html":        {always(answer{Status: 200, Body: "<html>"}), LostLate, 30 * time.Second},
		"no network": {func(*http.Request) (*http.Response, error) {
			return nil, errors.New("connection refused")
		}, LostLate, 30 * time.Second},
		"no grant": {always(answer{Status: 403, Body: `{"code": "denied", "detail": "x"}`}), LostLate, 30 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMachine(t)
				m.does(renewals(one.answer))
				began := time.Now()
				err := m.Lock(t.Context(), "job/42", func(ctx context.Context, lock *Lock) error {
					<-ctx.Done()
					if passed := time.Since(began); passed > one.within || passed < 9*time.Second {
						t.Errorf("told after %v", passed)
					}
					var lost *LockLost
					if !errors.As(context.Cause(ctx), &lost) || lost.Reason != one.reason {
						t.Errorf("the cause is %v", context.Cause(ctx))
					}
					if _, err := lock.HTTPClient().Get(m.URL("/x")); !errors.Is(err, ErrLockLost) {
						t.Errorf("a request was sent: %v", err)
					}
					same(t, "left", lock.ExpiresIn(), time.Duration(0))
					return ctx.Err()
				})
				var lost *LockLost
				if !errors.As(err, &lost) || lost.Reason != one.reason || !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
				if one.reason != LostToken && errors.Unwrap(lost) == nil {
					t.Error("the loss has no cause")
				}
				same(t, "releases", m.count("DELETE"), 1)
				same(t, "other requests", m.count("GET"), 0)
			})
		})
	}
}

func TestTroubleThatPassesInTimeIsNoLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t)
		m.does(renewals(silence))
		err := m.Lock(t.Context(), "job/42", func(_ context.Context, lock *Lock) error {
			time.Sleep(25 * time.Second)
			m.does(nil)
			time.Sleep(time.Minute)
			return lock.Check()
		})
		if err != nil {
			t.Error(err)
		}
	})
}

func TestWorkThatDidNotLookHasNotSucceeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t)
		err := m.Lock(t.Context(), "job/42", func(context.Context, *Lock) error {
			m.suspend(time.Hour)
			return nil
		})
		if !errors.Is(err, ErrLockLost) {
			t.Error(err)
		}
	})
}

func TestAMachineThatWasSuspendedSendsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t)
		lock, err := m.Acquire(t.Context(), "job/42")
		if err != nil {
			t.Fatal(err)
		}
		defer lock.Release()
		m.suspend(20 * time.Second)
		if err := lock.Check(); err != nil {
			t.Error(err)
		}
		m.suspend(time.Hour)
		if _, err := lock.HTTPClient().Get(m.URL("/x")); !errors.Is(err, ErrLockLost) {
			t.Error(err)
		}
		if _, err := lock.HTTPClient().Get("https://elsewhere.example/x"); !errors.Is(err, ErrLockLost) {
			t.Error(err)
		}
		same(t, "requests", m.count("GET"), 0)
		if lock.Context().Err() == nil {
			t.Error("the context goes on")
		}
	})
	synctest.Test(t, func(t *testing.T) { // and within a second by itself, whatever the timers say
		m := newMachine(t)
		lock, err := m.Acquire(t.Context(), "job/42")
		if err != nil {
			t.Fatal(err)
		}
		defer lock.Release()
		time.Sleep(5 * time.Second)
		m.suspend(time.Hour)
		began := time.Now()
		<-lock.Context().Done()
		if passed := time.Since(began); passed > time.Second {
			t.Errorf("told after %v", passed)
		}
	})
}

func TestARefusalInTheMidstOfTheWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t)
		stale := answer{Status: 412, Body: `{"code": "token-stale", "detail": "x", "resource": "job/42", "fence": "1000"}`}
		m.does(func(request *http.Request) (*http.Response, error) {
			if strings.HasPrefix(request.URL.Path, "/v1/tables") {
				return stale.response(request), nil
			}
			return nil, nil
		})
		write := func(ctx context.Context, lock *Lock) error {
			request, _ := http.NewRequestWithContext(ctx, http.MethodPut, m.URL("/v1/tables/x"), nil)
			_, err := lock.HTTPClient().Do(request)
			return err
		}
		err := m.Lock(t.Context(), "job/42", func(ctx context.Context, lock *Lock) error {
			err := write(ctx, lock)
			if ctx.Err() == nil {
				t.Error("the context goes on")
			}
			return err
		})
		if refusal := (*Stale)(nil); !errors.As(err, &refusal) || refusal.Fence() != "1000" {
			t.Error(err)
		}
		// A program that swallows it does not look as if it had succeeded.
		err = m.Lock(t.Context(), "job/42", func(ctx context.Context, lock *Lock) error {
			_ = write(ctx, lock)
			return nil
		})
		if !errors.Is(err, ErrLockLost) || !errors.Is(err, ErrStale) {
			t.Error(err)
		}
		// The refusal of another fence is no loss of this lock.
		stale.Body = strings.Replace(stale.Body, "job/42", "job/43", 1)
		err = m.Lock(t.Context(), "job/42", func(ctx context.Context, lock *Lock) error {
			if err := write(ctx, lock); !errors.Is(err, ErrStale) {
				t.Error(err)
			}
			return lock.Check()
		})
		if err != nil {
			t.Error(err)
		}
	})
}

func TestErrorsOfTheWorkAndCancellationsByOthersStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t)
		own := errors.New("the program's own")
		m.does(renewals(always(answer{Status: 410, Body: `{"code": "lease-lost", "detail": "x"}`})))
		err := m.Lock(t.Context(), "job/42", func(ctx context.Context, _ *Lock) error {
			<-ctx.Done()
			return own
		})
		same(t, "error", err, own)
		m.does(nil)
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		err = m.Lock(ctx, "job/42", func(ctx context.Context, _ *Lock) error {
			<-ctx.Done()
			return ctx.Err()
		})
		same(t, "error", err, context.DeadlineExceeded)
		same(t, "releases", m.count("DELETE"), 2)
		func() {
			defer func() { same(t, "panic", recover(), any("panic")) }()
			_ = m.Lock(t.Context(), "job/42", func(context.Context, *Lock) error { panic("panic") })
		}()
		same(t, "releases", m.count("DELETE"), 3)
	})
}

func TestLocksWithinLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		outer, inner := newMachine(t), newMachine(t)
		outer.does(renewals(always(answer{Status: 410, Body: `{"code": "lease-lost", "detail": "x"}`})))
		err := outer.Lock(t.Context(), "job/42", func(ctx context.Context, _ *Lock) error {
			return inner.Lock(ctx, "job/42", func(ctx context.Context, _ *Lock) error {
				<-ctx.Done()
				return ctx.Err()
			})
		})
		if !errors.Is(err, ErrLockLost) {
			t.Error(err)
		}
		same(t, "releases", []int{outer.count("DELETE"), inner.count("DELETE")}, []int{1, 1})
		// Lost while the next one is waited for: the place in its queue is given up.
		inner.does(func(request *http.Request) (*http.Response, error) {
			if request.Method == http.MethodPost && strings.HasPrefix(request.URL.Path, "/v1/leases/") {
				return silence(request)
			}
			return nil, nil
		})
		err = outer.Lock(t.Context(), "job/42", func(ctx context.Context, _ *Lock) error {
			_, err := inner.Acquire(ctx, "job/42")
			return err
		})
		if !errors.Is(err, ErrLockLost) {
			t.Error(err)
		}
		same(t, "withdrawals", inner.count("POST /v1/withdrawals/job/42"), 1)
	})
}

func TestAfterTheReleaseNothingIsSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t)
		ctx, stop := context.WithCancel(t.Context())
		lock, err := m.Acquire(ctx, "job/42")
		if err != nil {
			t.Fatal(err)
		}
		stop() // It was for the acquisition alone.
		time.Sleep(time.Minute)
		if err := lock.Check(); err != nil {
			t.Error(err)
		}
		lock.Release()
		lock.Release()
		_, err = lock.HTTPClient().Get(m.URL("/x"))
		if lost := (*LockLost)(nil); !errors.As(err, &lost) || lost.Reason != LostReleased {
			t.Error(err)
		}
		if lock.Barrier(t.Context()) == nil || lock.Context().Err() == nil {
			t.Error("it goes on")
		}
		same(t, "releases", m.count("DELETE"), 1)
	})
}

func TestAReleaseThatDoesNotComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t)
		lock, err := m.Acquire(t.Context(), "job/42")
		if err != nil {
			t.Fatal(err)
		}
		m.does(silence)
		began := time.Now()
		lock.Release()
		same(t, "time", time.Since(began), givingBack)
	})
}

func TestAcquiringIsRepeatedWithTheSameRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t)
		answers := []answer{
			{Status: 503, Body: `{"code": "unavailable", "detail": "x"}`}, {Status: 502, Body: "<html>"}, {Status: 429},
			{Status: 409, Body: `{"code": "lock-held", "detail": "x", "resource": "job/42", "holder": "a"}`},
			{Status: 400, Body: `{"code": "request-malformed", "detail": "body.wait: one request waits at most 10 seconds here."}`},
		}
		m.does(func(request *http.Request) (*http.Response, error) {
			if request.Method != http.MethodPost || len(answers) == 0 {
				return nil, nil
			}
			next := answers[0]
			answers = answers[1:]
			return next.response(request), nil
		})
		lock, err := m.Acquire(t.Context(), "job/42", WithoutBarrier())
		if err != nil {
			t.Fatal(err)
		}
		lock.Release()
		for i := range 6 {
			same(t, "request", m.sent[i]["request"], m.sent[0]["request"])
			same(t, "holder", m.sent[i]["holder"], any(lock.Holder()))
		}
		if !regexp.MustCompile(`\A[!-~]+@[!-~]+:\d+-[0-9a-f]+\z`).MatchString(lock.Holder()) {
			t.Errorf("the holder %q names no program, host and process", lock.Holder())
		}
		same(t, "wait", []any{m.sent[0]["wait"], m.sent[5]["wait"]}, []any{20.0, 10.0})
	})
}

func TestAcquiringIsGivenUp(t *testing.T) {
	held := `{"code": "lock-held", "detail": "x", "resource": "job/42", "holder": "a", "own": false}`
	for name, one := range map[string]struct {
		answer           answer
		wait             time.Duration
		kind             error
		least, most      time.Duration
		withdrawn, asked int
	}{
		"held":       {answer{Status: 409, Body: held}, 0, ErrNotAcquired, 0, 0, 0, 1},
		"held on":    {answer{Status: 409, Body: held}, 10 * time.Second, ErrNotAcquired, 10 * time.Second, 11 * time.Second, 1, 10},
		"own":        {answer{Status: 409, Body: strings.Replace(held, "false", "true", 1)}, time.Hour, ErrNotAcquired, 0, 0, 1, 1},
		"down":       {answer{Status: 503}, 0, ErrUnavailable, time.Second, 2 * time.Second, 1, 0},
		"down on":    {answer{Status: 503}, time.Hour, ErrUnavailable, 58 * time.Second, time.Minute, 1, 0},
		"no grant":   {answer{Status: 403, Body: `{"code": "denied", "detail": "x"}`}, time.Hour, ErrRefused, 0, 0, 0, 1},
		"unreadable": {answer{Status: 201, Body: "<html>"}, time.Hour, ErrRefused, 0, 0, 1, 1},
		"redirected": {answer{Status: 307, Headers: map[string]string{"Location": "https://elsewhere.example/"}}, time.Hour, ErrRefused, 0, 0, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMachine(t)
				m.does(func(request *http.Request) (*http.Response, error) {
					if strings.HasPrefix(request.URL.Path, "/v1/withdrawals/") {
						return nil, nil
					}
					return one.answer.response(request), nil
				})
				began := time.Now()
				_, err := m.Acquire(t.Context(), "job/42", WithWait(one.wait))
				if !errors.Is(err, one.kind) {
					t.Error(err)
				}
				if passed := time.Since(began); passed < one.least || passed > one.most {
					t.Errorf("given up after %v", passed)
				}
				same(t, "withdrawals", m.count("POST /v1/withdrawals/job/42"), one.withdrawn)
				if asked := m.count("POST /v1/leases/job/42"); one.asked != 0 && asked != one.asked {
					t.Errorf("asked %d times", asked)
				}
			})
		})
	}
}

// A request that is cancelled may be granted afterwards. So it arrives first, and is withdrawn then.
func TestACancelledAcquireIsWithdrawnAfterItHasArrived(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t)
		ended := false
		m.does(func(request *http.Request) (*http.Response, error) {
			if strings.HasPrefix(request.URL.Path, "/v1/withdrawals/") {
				if !ended {
					t.Error("withdrawn while the request is under way")
				}
				return nil, nil
			}
			defer func() { ended = true }()
			return silence(request)
		})
		ctx, stop := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer stop()
		began := time.Now()
		_, err := m.Acquire(ctx, "job/42")
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		same(t, "time", time.Since(began), arriving)
		same(t, "withdrawals", m.count("POST /v1/withdrawals/job/42"), 1)
	})
	synctest.Test(t, func(t *testing.T) { // The grant comes at the last moment: it is given back.
		m := newMachine(t)
		ctx, stop := context.WithCancel(t.Context())
		m.does(func(request *http.Request) (*http.Response, error) {
			stop()
			time.Sleep(10 * time.Millisecond)
			return nil, nil
		})
		if _, err := m.Acquire(ctx, "job/42"); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if m.count("DELETE")+m.count("POST /v1/withdrawals/") == 0 {
			t.Error("it is left behind")
		}
	})
}

func TestTheBarrier(t *testing.T) {
	stale := `{"code": "token-stale", "detail": "x", "resource": "job/42", "token": "7", "fence": "9"}`
	for name, one := range map[string]struct {
		barriers []answer
		holders  string
		kind     error
	}{
		"later":     {[]answer{{Status: 503}, {Status: 503, Body: `{"code": "unavailable", "detail": "x"}`}}, "", nil},
		"overtaken": {[]answer{{Status: 412, Body: stale}}, `[]`, ErrStale},
		"backwards": {[]answer{{Status: 412, Body: stale}}, `[{"holder": "host-7", "token": "7"}]`, ErrIssuerWentBackwards},
		"another":   {[]answer{{Status: 412, Body: stale}}, `[{"holder": "host-7", "token": "6"}]`, ErrStale},
		"refused":   {[]answer{{Status: 403, Body: `{"code": "denied", "detail": "x"}`}}, "", ErrRefused},
		"elsewhere": {[]answer{{Status: 200, Body: `{"resource": "job/43"}`}}, "", ErrRefused},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMachine(t)
				m.does(func(request *http.Request) (*http.Response, error) {
					switch {
					case request.Method == http.MethodGet:
						return answer{Status: 200, Body: `{"resource": "job/42", "holders": ` + one.holders + `}`}.response(request), nil
					case strings.HasSuffix(request.URL.Path, "/barrier") && len(one.barriers) > 0:
						next := one.barriers[0]
						one.barriers = one.barriers[1:]
						return next.response(request), nil
					}
					return nil, nil
				})
				lock, err := m.Acquire(t.Context(), "job/42", WithHolder("host-7"))
				if !errors.Is(err, one.kind) {
					t.Fatal(err)
				}
				if one.kind == nil {
					lock.Release()
				}
				for _, other := range []error{ErrStale, ErrIssuerWentBackwards, ErrLockLost} {
					if other != one.kind && errors.Is(err, other) {
						t.Errorf("it is %v, too", other)
					}
				}
				same(t, "releases", m.count("DELETE"), 1)
			})
		})
	}
	t.Run("a loss ends it", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			m := newMachine(t)
			m.does(func(request *http.Request) (*http.Response, error) {
				if strings.HasSuffix(request.URL.Path, "/barrier") {
					return silence(request)
				}
				return renewals(always(answer{Status: 410, Body: `{"code": "lease-lost", "detail": "x"}`}))(request)
			})
			began := time.Now()
			if _, err := m.Acquire(t.Context(), "job/42"); !errors.Is(err, ErrLockLost) {
				t.Error(err)
			}
			if passed := time.Since(began); passed > 11*time.Second {
				t.Errorf("told after %v", passed)
			}
		})
	})
}

func TestSharedHoldersNameNoHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t)
		lock, err := m.Acquire(t.Context(), "job/42", Shared())
		if err != nil {
			t.Fatal(err)
		}
		defer lock.Release()
		same(t, "mode", m.sent[0]["mode"], any("shared"))
		same(t, "barrier", m.sent[1], map[string]any{"token": "7"})
		same(t, "settings", lock.PostgresSettings(), map[string]string{"fencing.resource": "job/42", "fencing.token": "7"})
	})
}

func TestWrongArgumentsSendNothing(t *testing.T) {
	m := newMachine(t)
	for _, options := range [][]LockOption{{WithTTL(0)}, {WithTTL(-1)}, {WithWait(-1)}, {WithHolder("")}, {WithHolder("a\nb")}} {
		if _, err := m.Acquire(t.Context(), "job/42", options...); err == nil {
			t.Error("it was accepted")
		}
	}
	for _, name := range []string{"", "a b", "../x", "a?b", strings.Repeat("x", 513)} {
		if _, err := m.Acquire(t.Context(), name); err == nil {
			t.Errorf("%q was accepted", name)
		}
	}
	same(t, "requests", len(m.asked), 0)
	for _, address := range []string{"", "gateway", "ftp://x", "http://", "http://user:pass@x", "http://x?y", "http://x#y", "http://x:y"} {
		if _, err := New(address); err == nil {
			t.Errorf("%q was accepted", address)
		}
	}
}

func TestTheTokenSourceIsAskedBeforeEachRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t)
		var wrong error
		tokens := 0
		source := WithTokenSource(func(context.Context) (string, error) { tokens++; return "fresh", wrong })
		client, err := New("https://gateway.example", WithTransport(m.service), source)
		if err != nil {
			t.Fatal(err)
		}
		lock, err := client.Acquire(t.Context(), "job/42")
		if err != nil {
			t.Fatal(err)
		}
		defer lock.Release()
		same(t, "tokens", tokens, 2)
		wrong = errors.New("the provider is down")
		if _, err := lock.HTTPClient().Get(client.URL("/x")); !errors.Is(err, ErrUnavailable) || !errors.Is(err, wrong) {
			t.Error(err)
		}
		wrong = nil
	})
}
