package fencing

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// Real connections, to a gateway that is a double and to servers that mean harm.

const secret = "a-secret-key"

// double is a server that counts its connections.
type double struct {
	*httptest.Server
	connections atomic.Int32
}

// gatewayAt serves the lease service for job/42, and everything else by a handler.
func gatewayAt(t *testing.T, rest http.HandlerFunc) (*double, *Client) {
	t.Helper()
	service, server := &service{}, &double{}
	server.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(writer http.ResponseWriter, request *http.Request) {
		if !strings.HasPrefix(request.URL.Path, "/v1/leases/") && !strings.HasPrefix(request.URL.Path, "/v1/fences/") {
			rest(writer, request)
			return
		}
		response, err := service.RoundTrip(request)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		writer.WriteHeader(response.StatusCode)
		_, _ = io.Copy(writer, response.Body)
	}))
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			server.connections.Add(1)
		case http.StateClosed, http.StateHijacked:
			server.connections.Add(-1)
		default:
		}
	}
	server.Start()
	t.Cleanup(server.Close)
	client, err := New(server.URL, WithAPIKey(secret))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return server, client
}

func held(t *testing.T, client *Client) *Lock {
	t.Helper()
	lock, err := client.Acquire(t.Context(), "job/42")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(lock.Release)
	return lock
}

func TestARedirectElsewhereCarriesNothing(t *testing.T) {
	var elsewhere http.Header
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, request *http.Request) { elsewhere = request.Header }))
	defer other.Close()
	_, client := gatewayAt(t, func(writer http.ResponseWriter, request *http.Request) {
		http.Redirect(writer, request, other.URL, http.StatusTemporaryRedirect)
	})
	lock := held(t, client)
	request, _ := http.NewRequestWithContext(t.Context(), http.MethodPut, client.URL("/x"), strings.NewReader("body"))
	request.Header.Set("fencing-resource", "job/42")
	response, err := lock.HTTPClient().Do(request)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if elsewhere == nil {
		t.Fatal("the redirect was not followed")
	}
	for name := range elsewhere {
		if strings.HasPrefix(name, "Fencing-") || name == "Authorization" {
			t.Errorf("%s went elsewhere", name)
		}
	}
}

// A connection that breaks after the request: http.Transport would send a write with an Idempotency-Key again.
func TestNoWriteIsSentTwice(t *testing.T) {
	var writes, reads atomic.Int32
	_, client := gatewayAt(t, func(writer http.ResponseWriter, request *http.Request) {
		_, _ = io.Copy(io.Discard, request.Body)
		switch {
		case request.URL.Path == "/warm":
			return
		case request.Method == http.MethodGet:
			reads.Add(1)
		default:
			writes.Add(1)
			if request.URL.Path == "/once" && request.Header.Get("Idempotency-Key") != "a key" {
				t.Error("the key was not sent")
			}
		}
		panic(http.ErrAbortHandler)
	})
	lock := held(t, client)
	send := func(method, path string, body io.Reader) error {
		warm, err := lock.HTTPClient().Get(client.URL("/warm")) // so that the connection is a used one
		if err != nil {
			t.Fatal(err)
		}
		_ = warm.Body.Close()
		request, _ := http.NewRequestWithContext(t.Context(), method, client.URL(path), body)
		if path == "/once" {
			request.Header.Set("Idempotency-Key", "a key")
		}
		_, err = lock.HTTPClient().Do(request)
		return err
	}
	for i, err := range []error{
		send(http.MethodPut, "/x", strings.NewReader("body")),
		send(http.MethodDelete, "/x", nil),
		send(http.MethodPost, "/once", strings.NewReader("body")),
		send(http.MethodDelete, "/once", nil),
	} {
		if !errors.Is(err, ErrOutcomeUnknown) {
			t.Error(i, err)
		}
	}
	same(t, "writes", writes.Load(), int32(4))
	if err := send(http.MethodGet, "/x", nil); !errors.Is(err, ErrUnavailable) {
		t.Error(err)
	}
}

func TestARequestThatCannotHaveLeftIsUnavailable(t *testing.T) {
	server, client := gatewayAt(t, nil)
	lock := held(t, client)
	server.Close()
	client.Close()
	request, _ := http.NewRequestWithContext(t.Context(), http.MethodPut, client.URL("/x"), strings.NewReader("body"))
	if _, err := lock.HTTPClient().Do(request); !errors.Is(err, ErrUnavailable) {
		t.Error(err)
	}
}

func TestRefusalsOfTheFenceAreErrorsAndOtherAnswersStay(t *testing.T) {
	stale := `{"code": "token-stale", "detail": "x", "resource": "job/42", "fence": "9"}`
	var packed bytes.Buffer
	writer := gzip.NewWriter(&packed)
	_, _ = writer.Write([]byte(stale))
	_ = writer.Close()
	answers := map[string]struct {
		status int
		header map[string]string
		body   string
	}{
		"/stale":    {412, nil, stale},
		"/packed":   {412, map[string]string{"Content-Encoding": "gzip"}, packed.String()},
		"/bare":     {412, map[string]string{"Proxy-Status": "PostgREST; error=token-stale"}, ""},
		"/bucket":   {412, nil, "<Error><Code>StaleFencingToken</Code><Message>x</Message></Error>"},
		"/used":     {412, nil, `{"code": "token-used", "detail": "x"}`},
		"/changed":  {412, nil, `{"code": "row-changed", "detail": "x"}`},
		"/mismatch": {422, nil, `{"code": "resource-mismatch", "detail": "x"}`},
		"/html":     {412, nil, strings.Repeat("<html>", 400_000)},
	}
	_, client := gatewayAt(t, func(writer http.ResponseWriter, request *http.Request) {
		one := answers[request.URL.Path]
		for name, value := range one.header {
			writer.Header().Set(name, value)
		}
		writer.WriteHeader(one.status)
		_, _ = io.WriteString(writer, one.body)
	})
	for path, kind := range map[string]error{
		"/stale": ErrStale, "/packed": ErrStale, "/bare": ErrStale, "/bucket": ErrStale, "/used": ErrRefused,
		"/changed": nil, "/mismatch": nil, "/html": nil,
	} {
		lock := held(t, client)
		request, _ := http.NewRequestWithContext(t.Context(), http.MethodPut, client.URL(path), strings.NewReader("body"))
		request.Header.Set("Accept-Encoding", "gzip")
		response, err := lock.HTTPClient().Do(request)
		if !errors.Is(err, kind) || kind == nil && err != nil {
			t.Error(path, err)
		}
		if isLost := lock.Check() != nil; isLost != (kind == ErrStale) {
			t.Errorf("%s: lost is %v", path, isLost)
		}
		if err == nil {
			refusal := CheckResponse(response)
			if !errors.Is(refusal, ErrRefused) {
				t.Error(path, refusal)
			}
			body, err := io.ReadAll(response.Body)
			_ = response.Body.Close()
			if err != nil || string(body) != answers[path].body {
				t.Errorf("%s: %d bytes of %d, %v", path, len(body), len(answers[path].body), err)
			}
		}
		lock.Release()
	}
}

func TestServersThatMeanHarm(t *testing.T) {
	for name, handler := range map[string]http.HandlerFunc{
		"html":    func(writer http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(writer, "<html>") },
		"nothing": func(http.ResponseWriter, *http.Request) {},
		"cut off": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"slow": func(_ http.ResponseWriter, request *http.Request) {
			_, _ = io.Copy(io.Discard, request.Body) // Only then does it notice that the client has gone.
			<-request.Context().Done()
		},
		"no content": func(writer http.ResponseWriter, _ *http.Request) { writer.WriteHeader(http.StatusNoContent) },
		"endless": func(writer http.ResponseWriter, _ *http.Request) {
			for {
				if _, err := io.WriteString(writer, strings.Repeat("x", 1<<16)); err != nil {
					return
				}
			}
		},
		"deep": func(writer http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(writer, strings.Repeat("[", 1<<19))
		},
		"redirected": func(writer http.ResponseWriter, request *http.Request) {
			http.Redirect(writer, request, "/", http.StatusFound)
		},
	} {
		t.Run(name, func(t *testing.T) {
			before := runtime.NumGoroutine()
			server := httptest.NewServer(handler)
			client, err := New(server.URL, WithAPIKey(secret), WithTimeout(100*time.Millisecond))
			if err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer stop()
			_, err = client.Acquire(ctx, "job/42", WithWait(0))
			if err == nil || strings.Contains(fmt.Sprintf("%v %+v", err, err), secret) {
				t.Error(err)
			}
			client.Close()
			server.CloseClientConnections()
			server.Close()
			noneIsLeft(t, before)
		})
	}
}

func TestNoErrorShowsTheLease(t *testing.T) {
	server, client := gatewayAt(t, nil)
	lock := held(t, client)
	server.Close()
	client.Close()
	if _, err := client.leases.renew(t.Context(), lock.hold.granted(), lock.wanted); err == nil ||
		strings.Contains(err.Error(), "a-lease") || strings.Contains(err.Error(), secret) {
		t.Error(err)
	}
}

func TestNothingIsLeftBehind(t *testing.T) {
	server, client := gatewayAt(t, func(http.ResponseWriter, *http.Request) {})
	serving := runtime.NumGoroutine()
	for range 20 {
		err := client.Lock(t.Context(), "job/42", func(_ context.Context, lock *Lock) error {
			response, err := lock.HTTPClient().Get(client.URL("/x"))
			if err != nil {
				return err
			}
			return response.Body.Close()
		}, WithTTL(200*time.Millisecond))
		if err != nil {
			t.Fatal(err)
		}
	}
	client.Close()
	noneIsLeft(t, serving)
	for deadline := time.Now().Add(5 * time.Second); server.connections.Load() > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d connections are left", server.connections.Load())
		}
	}
}

// noneIsLeft waits until there are no more goroutines than before.
func noneIsLeft(t *testing.T, before int) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > before; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			stacks := make([]byte, 1<<20)
			t.Fatalf("%d goroutines are left:\n%s", runtime.NumGoroutine()-before, stacks[:runtime.Stack(stacks, true)])
		}
	}
}
