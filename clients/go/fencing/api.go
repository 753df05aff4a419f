package fencing

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// api sends requests that may be sent again, every one of them: an answer that is lost or unclear is Unavailable.
type api struct {
	url       string
	origin    string
	transport http.RoundTripper
	authorize func(context.Context) (string, error)
	timeout   time.Duration
}

// ask returns the JSON of a success, and nil without a body. The gateway may take longer on purpose.
//
// The errors are those of refusals, and Unavailable without a readable answer.
func (a *api) ask(ctx context.Context, method, path string, content any, longer time.Duration) (any, error) {
	ctx, stop := context.WithTimeout(ctx, a.timeout+longer)
	defer stop()
	request, err := a.request(ctx, method, path, content)
	if err != nil {
		return nil, err
	}
	response, err := a.client().Do(request)
	if err != nil {
		// The outer error has the URL, and with it the lease, which is a secret.
		var outer *url.Error
		if errors.As(err, &outer) {
			err = outer.Err
		}
		return nil, a.unreachable(err)
	}
	defer response.Body.Close() //nolint:errcheck // The answer has been read, or is given up.
	if response.StatusCode >= http.StatusBadRequest {
		return nil, unlessRepeatable(refusalOf(response))
	}
	if response.StatusCode == http.StatusNoContent {
		return nil, nil
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, mostBytesOfAnAnswer))
	if err != nil {
		return nil, a.unreachable(err)
	}
	if view := decoded(body); view != nil {
		return view, nil
	}
	return nil, &Refused{Details{
		Message: fmt.Sprintf("The server at %s is not a fencing gateway.", a.url),
		Advice:  "Give the gateway's own address.",
		Status:  response.StatusCode,
	}}
}

func (a *api) request(ctx context.Context, method, path string, content any) (*http.Request, error) {
	var body io.Reader
	if content != nil {
		text, err := json.Marshal(content)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(text)
	}
	request, err := http.NewRequestWithContext(ctx, method, a.url+path, body)
	if err != nil {
		return nil, err
	}
	if content != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	return request, a.present(request)
}

// present adds who the program is, unless the request says so.
func (a *api) present(request *http.Request) error {
	if request.Header.Get("Authorization") != "" {
		return nil
	}
	authorization, err := a.authorize(request.Context())
	if err != nil {
		return &Unavailable{Details{Message: "The source of tokens has none: " + err.Error() + ".", cause: err}}
	}
	if authorization != "" {
		request.Header.Set("Authorization", authorization)
	}
	return nil
}

// client follows no redirect: it would tell another host who the program is.
func (a *api) client() *http.Client {
	return &http.Client{
		Transport:     a.transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

func (a *api) unreachable(err error) error {
	return &Unavailable{Details{
		Message: fmt.Sprintf("%s cannot be reached: %v.", a.url, err), Advice: "Try again.", cause: err,
	}}
}

// unlessRepeatable returns the error of a request that may be repeated: for it, an unknown outcome is Unavailable.
func unlessRepeatable(err Error) Error {
	if unknown, isUnknown := err.(*OutcomeUnknown); isUnknown {
		unavailable := &Unavailable{unknown.Details}
		unavailable.Advice, unavailable.cause = "Try again.", unknown
		return unavailable
	}
	return err
}

// about returns an answer that is about a resource. A proxy that decodes or normalises paths makes another name of it.
func about(view any, resource string) (map[string]any, error) {
	object, _ := view.(map[string]any)
	if object["resource"] == any(resource) {
		return object, nil
	}
	return nil, &Refused{Details{
		Message: fmt.Sprintf("The gateway was asked about %s, and answered about %.200v.", resource, object["resource"]),
		Advice:  "A proxy on the way changes paths. Have it pass them on as they were sent.",
		Status:  http.StatusOK,
	}}
}

// originOf returns the scheme, host and port of a URL.
func originOf(address *url.URL) string {
	scheme, port := lower(address.Scheme), address.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[scheme]
	}
	return scheme + "://" + lower(address.Hostname()) + ":" + port
}

// lower returns ASCII in lower case. Letters of other scripts that fold to ASCII would name another host.
func lower(text string) string {
	return strings.Map(func(letter rune) rune {
		if 'A' <= letter && letter <= 'Z' {
			return letter + 'a' - 'A'
		}
		return letter
	}, text)
}
