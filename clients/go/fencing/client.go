package fencing

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// Client is one gateway, and who the program is there. It may be used by any number of goroutines.
type Client struct {
	api       *api
	leases    *leases
	holder    string
	ownsIdles bool
}

// Option is an option of [New].
type Option func(*Client) error

// WithAPIKey sets the API key of the program.
func WithAPIKey(key string) Option {
	return WithTokenSource(func(context.Context) (string, error) { return key, nil })
}

// WithTokenSource sets a source of bearer tokens, such as the identity tokens of a provider. It is asked before each
// request, so it should keep a token for as long as it is valid.
func WithTokenSource(source func(context.Context) (string, error)) Option {
	return func(c *Client) error {
		c.api.authorize = func(ctx context.Context) (string, error) {
			token, err := source(ctx)
			if err != nil {
				return "", err
			}
			return "Bearer " + token, nil
		}
		return nil
	}
}

// WithTransport sets what sends all requests, for certificates, proxies and traces. It must not repeat requests. The
// program closes its connections.
func WithTransport(transport http.RoundTripper) Option {
	return func(c *Client) error {
		c.api.transport, c.ownsIdles = transport, false
		return nil
	}
}

// WithTimeout sets the time for one request to the API. The default is 30 seconds.
func WithTimeout(timeout time.Duration) Option {
	return func(c *Client) error {
		if timeout <= 0 {
			return errors.New("fencing: a timeout is longer than 0")
		}
		c.api.timeout = timeout
		return nil
	}
}

// WithName sets the beginning of the names by which other holders see the locks of this program. The default is the
// program, the host and the process id, as billing@host-7:4711.
func WithName(name string) Option {
	return func(c *Client) error {
		c.holder = name
		return checkHolder(name)
	}
}

func withClock(clock clock) Option {
	return func(c *Client) error {
		c.leases.clock = clock
		return nil
	}
}

// New returns a client of the gateway at an address such as https://gateway.example.com. It connects to nothing yet.
func New(address string, options ...Option) (*Client, error) {
	gateway, err := url.Parse(strings.TrimRight(address, "/"))
	if err != nil || gateway.Scheme != "http" && gateway.Scheme != "https" || gateway.Hostname() == "" ||
		gateway.User != nil || gateway.RawQuery != "" || gateway.Fragment != "" {
		return nil, errors.New("fencing: the address of a gateway is such as https://gateway.example.com")
	}
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true}
	if usual, isUsual := http.DefaultTransport.(*http.Transport); isUsual {
		transport = usual.Clone()
	}
	transport.MaxIdleConnsPerHost = 100 // A lock that waits in a queue has a connection of its own.
	api := &api{
		url:       gateway.String(),
		origin:    originOf(gateway),
		transport: transport,
		timeout:   30 * time.Second,
		authorize: func(context.Context) (string, error) { return "", nil },
	}
	client := &Client{api: api, leases: newLeases(api, newClock()), holder: ownName(), ownsIdles: true}
	for _, option := range options {
		if err := option(client); err != nil {
			return nil, err
		}
	}
	return client, nil
}

// Close closes the connections of the client that are idle. Release the locks before.
func (c *Client) Close() {
	if transport, isOurs := c.api.transport.(*http.Transport); isOurs && c.ownsIdles {
		transport.CloseIdleConnections()
	}
}

// URL returns the address of a path of the gateway, such as /v1/tables/accounts?id=eq.42.
func (c *Client) URL(path string) string {
	if !strings.HasPrefix(path, "/") {
		path = "/" + path
	}
	return c.api.url + path
}

// LockOption is an option of [Client.Acquire] and [Client.Lock].
type LockOption func(*wanted) error

// WithTTL sets for how long the lock stays held after its holder has died. The default is 30 seconds.
func WithTTL(ttl time.Duration) LockOption {
	return func(w *wanted) error {
		if ttl <= 0 {
			return errors.New("fencing: a ttl is longer than 0")
		}
		w.ttl = ttl
		return nil
	}
}

// WithWait sets the time to wait in the queue, 0 for not at all. Without it the wait ends with the context.
func WithWait(wait time.Duration) LockOption {
	return func(w *wanted) error {
		if wait < 0 {
			return errors.New("fencing: the time to wait is 0 or longer")
		}
		w.wait = wait
		return nil
	}
}

// Shared makes the lock one that other shared holders may hold, too. They have one token, and send no name.
func Shared() LockOption {
	return func(w *wanted) error {
		w.mode = SharedMode
		return nil
	}
}

// WithHolder sets the whole name of the holder, instead of a unique one. Two locks of one name share one hold.
func WithHolder(name string) LockOption {
	return func(w *wanted) error {
		w.holder = name
		return checkHolder(name)
	}
}

// WithoutBarrier leaves the raise of the fence to the first write, or to [Lock.Barrier]. Until then, what the program
// reads may still be changed by an older holder.
func WithoutBarrier() LockOption {
	return func(w *wanted) error {
		w.barrier = false
		return nil
	}
}

func (c *Client) wanted(resource string, options []LockOption) (wanted, error) {
	if err := CheckResource(resource); err != nil {
		return wanted{}, err
	}
	wish := wanted{
		resource: resource,
		// A unique name, in this process as well: for the lock service, one name is one holder.
		holder:  fmt.Sprintf("%.180s-%s", c.holder, randomText(6)),
		ttl:     30 * time.Second,
		wait:    forEver,
		mode:    ExclusiveMode,
		barrier: true,
		request: randomText(16),
	}
	for _, option := range options {
		if err := option(&wish); err != nil {
			return wanted{}, err
		}
	}
	return wish, nil
}

var (
	holderGrammar = regexp.MustCompile(`\A[!-~]([ -~]{0,198}[!-~])?\z`)
	unfitForAName = regexp.MustCompile(`[^!-~]`)
)

func checkHolder(name string) error {
	if !holderGrammar.MatchString(name) {
		return errors.New("fencing: a holder's name is 1 to 200 printable ASCII characters, with no space at its ends")
	}
	return nil
}

func ownName() string {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "go"
	}
	program := "go"
	if len(os.Args) > 0 && os.Args[0] != "" {
		program = filepath.Base(os.Args[0])
	}
	readable := func(name string) string { return unfitForAName.ReplaceAllString(name, "-") }
	return fmt.Sprintf("%.60s@%.100s:%d", readable(program), readable(host), os.Getpid())
}

func randomText(bytes int) string {
	random := make([]byte, bytes)
	_, _ = rand.Read(random) // It never fails.
	return hex.EncodeToString(random)
}
