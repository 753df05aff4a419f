package fencing

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

// The vectors of docs/client-protocol.md, which the clients in all languages run.

func vectors(t *testing.T, name string, into any) {
	t.Helper()
	folder := filepath.Join("..", "..", "..", "tests", "vectors", "client")
	if _, err := os.Stat(folder); err != nil {
		t.Skip("the vectors are in the repository, and not in this module")
	}
	text, err := os.ReadFile(filepath.Join(folder, name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, into); err != nil {
		t.Fatal(err)
	}
}

func some[T any](t *testing.T, all []T) []T {
	t.Helper()
	if len(all) == 0 {
		t.Fatal("there are no vectors")
	}
	return all
}

func TestVectorsOfTokens(t *testing.T) {
	var file struct {
		Read []struct {
			Text, Epoch, Value, Canonical string
			Error                         bool
		}
		Compare []struct {
			Left, Right string
			Order       int
		}
	}
	vectors(t, "tokens", &file)
	for _, one := range some(t, file.Read) {
		token, err := ParseToken(one.Text)
		if one.Error != (err != nil) {
			t.Errorf("%.40q: %v", one.Text, err)
		}
		if err == nil {
			same(t, one.Text, []string{fmt.Sprint(token.Epoch()), fmt.Sprint(token.Value()), token.String()},
				[]string{one.Epoch, one.Value, one.Canonical})
		}
	}
	for _, one := range some(t, file.Compare) {
		left, _ := ParseToken(one.Left)
		right, _ := ParseToken(one.Right)
		same(t, one.Left+" and "+one.Right, left.Compare(right), one.Order)
	}
}

func TestVectorsOfResources(t *testing.T) {
	var file struct {
		Names []struct {
			Name     string
			Error    bool
			Spelling string
		}
		Values []struct {
			Value, Escaped string
			AsPath         string `json:"as_path"`
		}
		Paths []struct{ Gateway, Resource, Lease, URL string }
	}
	vectors(t, "resources", &file)
	for _, one := range some(t, file.Names) {
		err := CheckResource(one.Name)
		if one.Error != (err != nil) {
			t.Errorf("%.40q: %v", one.Name, err)
		}
		if err != nil && one.Spelling != "" && !strings.HasSuffix(err.Error(), " spelling is "+one.Spelling) {
			t.Errorf("%q: %v", one.Name, err)
		}
		if err != nil && one.Spelling == "" && strings.Contains(err.Error(), "spelling") {
			t.Errorf("%q: %v", one.Name, err)
		}
	}
	for _, one := range some(t, file.Values) {
		same(t, one.Value, []string{EscapeValue(one.Value), EscapePath(one.Value)}, []string{one.Escaped, one.AsPath})
	}
	for _, one := range some(t, file.Paths) {
		script := &script{answers: []answer{{Status: 200, Body: "{}"}}}
		path := "/v1/leases/" + one.Resource
		if one.Lease != "" {
			path += "/" + one.Lease
		}
		_, _ = script.client(t, one.Gateway).api.ask(t.Context(), http.MethodGet, path, nil, 0)
		same(t, one.Resource, script.asked, []string{one.URL})
	}
}

func TestVectorsOfSequencers(t *testing.T) {
	var file struct {
		Read []struct {
			Text, Resource, Mode, Token, Signature string
			Error                                  bool
		}
	}
	vectors(t, "sequencers", &file)
	for _, one := range some(t, file.Read) {
		read, err := ParseSequencer(one.Text)
		if one.Error != (err != nil) {
			t.Errorf("%.60q: %v", one.Text, err)
		}
		if err == nil {
			same(t, one.Text, []string{read.Resource, string(read.Mode), read.Token.String(), read.Signature, read.Text()},
				[]string{one.Resource, one.Mode, one.Token, one.Signature, one.Text})
		}
	}
}

type ofAnswers struct {
	Answers []struct {
		Name       string
		Status     int
		Headers    map[string]string
		Body       string
		Error      string
		Code       string
		Retry      bool
		RetryAfter *float64 `json:"retry_after"`
		Facts      map[string]any
		OfTheAPI   string `json:"of_the_api"`
	}
	RetryAfter []struct {
		Headers map[string]string
		Seconds *float64
	} `json:"retry_after"`
	Pauses []struct {
		Failures   int
		Draw       float64
		RetryAfter float64 `json:"retry_after"`
		Seconds    float64
	}
}

func TestVectorsOfAnswers(t *testing.T) {
	var file ofAnswers
	vectors(t, "answers", &file)
	for _, one := range some(t, file.Answers) {
		t.Run(one.Name, func(t *testing.T) {
			err := CheckResponse(answer{Status: one.Status, Headers: one.Headers, Body: one.Body}.response(nil))
			var read Error
			if !errors.As(err, &read) {
				t.Fatalf("there is no error of this package: %v", err)
			}
			same(t, "kind", kindOf(err), one.Error)
			same(t, "code", read.Detail().Code, one.Code)
			same(t, "retry", read.Retryable(), one.Retry)
			same(t, "retry_after", asked(read.Detail().RetryAfter()), one.RetryAfter)
			for name, fact := range one.Facts {
				same(t, name, factOf(err, name), fact)
			}
			script := &script{answers: []answer{{Status: one.Status, Headers: one.Headers, Body: one.Body}}}
			client := script.client(t, "https://gateway.example")
			_, err = client.api.ask(t.Context(), http.MethodPost, "/v1/leases/job/42", nil, 0)
			if one.OfTheAPI == "" {
				one.OfTheAPI = one.Error
			}
			same(t, "kind of the API", kindOf(err), one.OfTheAPI)
		})
	}
}

func TestVectorsOfRetries(t *testing.T) {
	var file ofAnswers
	vectors(t, "answers", &file)
	for _, one := range some(t, file.RetryAfter) {
		same(t, fmt.Sprint(one.Headers), asked(retryAfter(headerOf(one.Headers))), one.Seconds)
	}
	for _, one := range some(t, file.Pauses) {
		near(t, fmt.Sprint(one), pauseAfter(one.Failures, durationOf(one.RetryAfter), one.Draw).Seconds(), one.Seconds)
	}
}

func TestVectorsOfWrites(t *testing.T) {
	type lock struct{ Token, Resource, Holder, Mode, Sequencer string }
	var file struct {
		Names  []string
		Writes []struct {
			Name, Gateway, URL string
			APIKey             *string `json:"api_key"`
			Lock               lock
			Given, Sent        map[string]string
		}
	}
	vectors(t, "writes", &file)
	for _, one := range some(t, file.Writes) {
		t.Run(one.Name, func(t *testing.T) {
			script := &script{answers: []answer{{Status: 200}}}
			options := []Option{}
			if one.APIKey != nil {
				options = append(options, WithAPIKey(*one.APIKey))
			}
			token, err := ParseToken(one.Lock.Token)
			if err != nil {
				t.Fatal(err)
			}
			wanted := wanted{resource: one.Lock.Resource, holder: one.Lock.Holder, ttl: time.Minute, mode: Mode(one.Lock.Mode)}
			got := grant{token: token, sequencer: one.Lock.Sequencer, validUntil: time.Minute}
			lock := newLock(script.client(t, one.Gateway, options...), wanted, got, t.Context())
			defer func() { script.answers = []answer{{Status: 204}}; lock.Release() }()
			address, err := url.Parse(one.URL)
			if err != nil {
				t.Fatal(err)
			}
			request := &http.Request{Method: http.MethodPut, URL: address, Header: headerOf(one.Given)}
			if _, err := lock.RoundTripper(nil).RoundTrip(request); err != nil {
				t.Fatal(err)
			}
			sent := map[string]string{}
			for _, name := range file.Names {
				if value := script.headers[0].Get(name); value != "" {
					sent[name] = value
				}
			}
			same(t, "headers", sent, one.Sent)
		})
	}
}

type step struct {
	Do                 string
	Sent, Answered, At float64
	Status             int
	Body               string
	Resource           string
	Earlier, Renewal   *answer
	Then               map[string]any
	Headers            map[string]string
}

func TestVectorsOfLeases(t *testing.T) {
	var file struct {
		Scenarios []struct {
			Name   string
			Wanted struct {
				Resource, Holder, Mode string
				TTL                    float64
			}
			Steps []step
		}
	}
	vectors(t, "leases", &file)
	for _, scenario := range some(t, file.Scenarios) {
		t.Run(scenario.Name, func(t *testing.T) {
			script := &script{isTimed: true}
			play := &played{script: script, client: script.client(t, "https://gateway.example"), wanted: wanted{
				resource: scenario.Wanted.Resource, holder: scenario.Wanted.Holder, mode: Mode(scenario.Wanted.Mode),
				ttl: durationOf(scenario.Wanted.TTL), request: "a request",
			}}
			for _, step := range scenario.Steps {
				seen := play.step(t, step)
				for name, value := range step.Then {
					if number, isNumber := value.(float64); isNumber {
						got, _ := seen[name].(float64)
						near(t, step.Do+": "+name, got, number)
					} else {
						same(t, step.Do+": "+name, seen[name], value)
					}
				}
			}
		})
	}
}

// played is one scenario, played with the parts of a lock and without its goroutines.
type played struct {
	script *script
	client *Client
	wanted wanted
	hold   *hold
}

func (p *played) step(t *testing.T, step step) map[string]any {
	p.script.at, p.script.asked = durationOf(step.Sent), nil
	p.script.answers = []answer{{step.Answered, step.Status, step.Headers, step.Body}}
	switch step.Do {
	case "acquire":
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		p.script.exhausted = stop
		if step.Earlier != nil {
			p.script.answers = append([]answer{*step.Earlier}, p.script.answers...)
		}
		if step.Renewal != nil {
			p.script.answers = append(p.script.answers, *step.Renewal)
		}
		got, err := p.client.leases.acquire(ctx, p.wanted)
		if ctx.Err() != nil {
			return map[string]any{"again": true}
		}
		if err != nil {
			last := p.script.asked[len(p.script.asked)-1]
			return map[string]any{"error": kindOf(err), "withdrawn": strings.Contains(last, "/v1/withdrawals/")}
		}
		p.hold = &hold{
			resource: p.wanted.resource, ttl: p.wanted.ttl, clock: p.script.clock, grant: got, lost: func(*LockLost) {},
		}
		return p.state(p.hold.left() / 3)
	case "renew":
		if p.hold.loss() != nil {
			return p.state(0)
		}
		left := p.hold.left()
		renewed, err := p.client.leases.renew(t.Context(), p.hold.granted(), p.wanted)
		if err != nil {
			return p.state(p.hold.failed(err, left))
		}
		return p.state(p.hold.renewed(renewed))
	case "look":
		p.script.at = durationOf(step.At)
	case "refused":
		p.script.at = durationOf(step.At)
		facts := map[string]any{}
		if step.Resource != "" {
			facts["resource"] = step.Resource
		}
		p.hold.overtaken(&Stale{Details{Message: "overtaken", Facts: facts}})
	default:
		t.Fatal(step.Do)
	}
	return p.state(0)
}

func (p *played) state(pause time.Duration) map[string]any {
	loss, held := p.hold.loss(), p.hold.granted()
	seen := map[string]any{
		"token": held.token.String(), "left": p.hold.left().Seconds(), "renew_in": pause.Seconds(), "state": "held",
	}
	if held.sequencer != "" {
		seen["sequencer"] = held.sequencer
	}
	if loss != nil {
		seen["state"], seen["why"] = "lost", string(loss.Reason)
	}
	return seen
}

// answer is one answer of a script, and the reading of the clock when it comes.
type answer struct {
	Answered float64
	Status   int
	Headers  map[string]string
	Body     string
}

func (a answer) response(request *http.Request) *http.Response {
	return &http.Response{
		StatusCode: a.Status, Header: headerOf(a.Headers), Request: request,
		Body: io.NopCloser(strings.NewReader(a.Body)),
	}
}

// script is a clock, and a server that answers with what it is given.
type script struct {
	at        time.Duration
	isTimed   bool
	answers   []answer
	asked     []string
	headers   []http.Header
	exhausted func()
}

func (s *script) clock() time.Duration { return s.at }

func (s *script) client(t *testing.T, address string, options ...Option) *Client {
	t.Helper()
	client, err := New(address, append(options, WithTransport(s), withClock(s.clock))...)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func (s *script) RoundTrip(request *http.Request) (*http.Response, error) {
	s.asked = append(s.asked, request.URL.String())
	s.headers = append(s.headers, request.Header)
	if strings.Contains(request.URL.Path, "/v1/withdrawals/") {
		return answer{Status: 204}.response(request), nil
	}
	if len(s.answers) == 0 {
		if s.exhausted != nil {
			s.exhausted()
		}
		return nil, errors.New("there are no more answers")
	}
	next := s.answers[0]
	s.answers = s.answers[1:]
	if s.isTimed {
		s.at = durationOf(next.Answered)
	}
	return next.response(request), nil
}

func headerOf(values map[string]string) http.Header {
	header := http.Header{}
	for name, value := range values {
		header.Set(name, value)
	}
	return header
}

func kindOf(err error) string {
	for kind, sentinel := range map[string]error{
		"stale": ErrStale, "lock-lost": ErrLockLost, "not-acquired": ErrNotAcquired, "unavailable": ErrUnavailable,
		"outcome-unknown": ErrOutcomeUnknown, "implausible": ErrImplausible, "refused": ErrRefused,
	} {
		// An error may wrap one of another kind.
		if is, has := err.(interface{ Is(error) bool }); has && is.Is(sentinel) {
			return kind
		}
	}
	return fmt.Sprint(err)
}

// factOf returns a member of an error as the vectors have it: null for a text that is not known.
func factOf(err error, name string) any {
	members := map[string]any{}
	if stale := (*Stale)(nil); errors.As(err, &stale) {
		for name, text := range map[string]string{
			"resource": stale.Resource(), "token": stale.Token(), "fence": stale.Fence(), "raised_by": stale.RaisedBy(),
			"raised_at": stale.RaisedAt(), "rejection": stale.Rejection(),
		} {
			if text != "" {
				members[name] = text
			}
		}
	}
	if held := (*NotAcquired)(nil); errors.As(err, &held) {
		members["resource"] = held.Resource()
		if holder := held.Holder(); holder != "" {
			members["holder"] = holder
		}
		if expires, isKnown := held.ExpiresIn(); isKnown {
			members["expires_in"] = expires.Seconds()
		}
	}
	return members[name]
}

func asked(after time.Duration, asks bool) *float64 {
	if !asks {
		return nil
	}
	seconds := after.Seconds()
	return &seconds
}

func same(t *testing.T, what string, got, wanted any) {
	t.Helper()
	if !reflect.DeepEqual(got, wanted) {
		t.Errorf("%s: got %v, wanted %v", what, shown(got), shown(wanted))
	}
}

func shown(value any) any {
	if number, isPointer := value.(*float64); isPointer && number != nil {
		return *number
	}
	return value
}

func near(t *testing.T, what string, got, wanted float64) {
	t.Helper()
	if math.Abs(got-wanted) > 1e-6 {
		t.Errorf("%s: got %v, wanted %v", what, got, wanted)
	}
}
