package integration

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"fencing-gateway.example/fencing-gateway.git/clients/go/awss3"
	"fencing-gateway.example/fencing-gateway.git/clients/go/fencing"
	"fencing-gateway.example/fencing-gateway.git/clients/go/pgxlock"
)

const patience = 30 * time.Second

// gateway is the address of the gateway of the demo's configuration.
var gateway = os.Getenv("FENCING_GATEWAY")

func TestMain(m *testing.M) {
	if resource := os.Getenv("FENCING_ZOMBIE"); resource != "" {
		beZombie(resource)
		return
	}
	os.Exit(m.Run())
}

func newClient(t *testing.T, options ...fencing.Option) *fencing.Client {
	t.Helper()
	if gateway == "" {
		t.Skip("FENCING_GATEWAY is not set: run tests/clients/test_go.py")
	}
	return clientOf(t, gateway, options...)
}

func clientOf(t *testing.T, address string, options ...fencing.Option) *fencing.Client {
	t.Helper()
	client, err := fencing.New(address, append(options, fencing.WithAPIKey("demo-key"))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

func held(t *testing.T, client *fencing.Client, resource string, options ...fencing.LockOption) *fencing.Lock {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	lock, err := client.Acquire(ctx, resource, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(lock.Release)
	return lock
}

// job returns the name of a lock that no other test uses.
func job() string { return fmt.Sprintf("job/go-%d", time.Now().UnixNano()) }

// account returns the number of a row that no other test uses, and the name of its lock.
func account() (id int64, resource string) {
	id = time.Now().UnixNano()
	return id, fmt.Sprintf("public.accounts/%d", id)
}

func put(ctx context.Context, client *http.Client, origin string, id int64, owner string) error {
	row, _ := json.Marshal(map[string]any{"id": id, "owner": owner, "balance": 1})
	address := fmt.Sprintf("%s/v1/tables/accounts?id=eq.%d", origin, id)
	request, err := http.NewRequestWithContext(ctx, http.MethodPut, address, bytes.NewReader(row))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close() //nolint:errcheck // read by CheckResponse
	return fencing.CheckResponse(response)
}

// ask sends a request past every lock.
func ask(t *testing.T, method, path string, content any) map[string]any {
	t.Helper()
	text, _ := json.Marshal(content)
	request, _ := http.NewRequestWithContext(t.Context(), method, gateway+path, bytes.NewReader(text))
	request.Header.Set("Authorization", "Bearer demo-key")
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close() //nolint:errcheck // it has been read
	var view map[string]any
	if err := json.NewDecoder(response.Body).Decode(&view); err != nil || response.StatusCode >= 400 {
		t.Fatal(response.Status, view, err)
	}
	return view
}

// overtake raises the fence, as a newer holder of another lock service does.
func overtake(t *testing.T, resource, token string) {
	t.Helper()
	ask(t, http.MethodPost, "/v1/fences/"+resource+"/barrier", map[string]any{"token": token, "holder": "successor"})
}

func rejections(t *testing.T, resource string) []any {
	t.Helper()
	return ask(t, http.MethodGet, "/v1/rejections?resource="+resource, nil)["rejections"].([]any)
}

func count(t *testing.T, resource, of string) int {
	t.Helper()
	switch value := ask(t, http.MethodGet, "/v1/leases/"+resource, nil)[of].(type) {
	case []any:
		return len(value)
	case float64:
		return int(value)
	default:
		t.Fatal(of, value)
		return 0
	}
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal(what)
		}
	}
}

func lossOf(t *testing.T, err error, reason fencing.LossReason) {
	t.Helper()
	var lost *fencing.LockLost
	if !errors.As(err, &lost) || lost.Reason != reason {
		t.Errorf("not lost because %s: %v", reason, err)
	}
}

func TestATableIsWrittenUnderTheLock(t *testing.T) {
	client, before := newClient(t), runtime.NumGoroutine()
	id, resource := account()
	err := client.Lock(t.Context(), resource, func(ctx context.Context, lock *fencing.Lock) error {
		if err := put(ctx, lock.HTTPClient(), gateway, id, "ann"); err != nil {
			return err
		}
		// A write to another resource by mistake touches nothing.
		if err := put(ctx, lock.HTTPClient(), gateway, id+1, "ann"); !errors.Is(err, fencing.ErrRefused) {
			t.Error(err)
		}
		time.Sleep(time.Second) // longer than the lock would last
		if holders := count(t, resource, "holders"); holders != 1 {
			t.Errorf("%d holders", holders)
		}
		return put(ctx, lock.HTTPClient(), gateway, id, "bob")
	}, fencing.WithTTL(600*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	if holders := count(t, resource, "holders"); holders != 0 {
		t.Errorf("%d holders after the release", holders)
	}
	client.Close()
	http.DefaultClient.CloseIdleConnections()
	eventually(t, "goroutines are left", func() bool { return runtime.NumGoroutine() <= before })
}

func TestNamesArriveAsTheyAre(t *testing.T) {
	client := newClient(t)
	name := job() + "/a-._~!$&'()*+;:@b//..~/%25%C3%A9"
	lock := held(t, client, name)
	if holders := count(t, name, "holders"); holders != 1 {
		t.Errorf("%d holders", holders)
	}
	lock.Release()
	if holders := count(t, name, "holders"); holders != 0 {
		t.Errorf("%d holders", holders)
	}
}

func TestSharedLocks(t *testing.T) {
	client, name := newClient(t), job()
	one, other := held(t, client, name, fencing.Shared()), held(t, client, name, fencing.Shared())
	if one.Token() != other.Token() {
		t.Error(one.Token(), other.Token())
	}
	if _, err := client.Acquire(t.Context(), name, fencing.WithWait(0)); !errors.Is(err, fencing.ErrNotAcquired) {
		t.Error(err)
	}
}

func TestATakenLock(t *testing.T) {
	client, name := newClient(t), job()
	first := held(t, client, name)
	_, err := client.Acquire(t.Context(), name, fencing.WithWait(0))
	var refused *fencing.NotAcquired
	if !errors.As(err, &refused) || refused.Holder() != first.Holder() {
		t.Error(err)
	}
	next := make(chan *fencing.Lock)
	go func() { next <- held(t, client, name) }()
	eventually(t, "nobody waits", func() bool { return count(t, name, "waiters") == 1 })
	first.Release()
	second := <-next
	if second.Token().Compare(first.Token()) <= 0 {
		t.Error(first.Token(), second.Token())
	}
}

func TestACancelledWaitGivesItsPlaceBack(t *testing.T) {
	client, name := newClient(t), job()
	held(t, client, name)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		_, err := client.Acquire(ctx, name)
		ended <- err
	}()
	eventually(t, "nobody waits", func() bool { return count(t, name, "waiters") == 1 })
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if waiters := count(t, name, "waiters"); waiters != 0 {
		t.Errorf("%d waiters are left", waiters)
	}
}

func TestARenewalThatIsRefused(t *testing.T) {
	client, name := newClient(t), job()
	err := client.Lock(t.Context(), name, func(ctx context.Context, lock *fencing.Lock) error {
		// Two locks of one name share one hold, which the other one ends.
		held(t, client, name, fencing.WithHolder(lock.Holder())).Release()
		<-ctx.Done()
		lossOf(t, context.Cause(ctx), fencing.LostRefused)
		return ctx.Err()
	}, fencing.WithTTL(time.Second))
	lossOf(t, err, fencing.LostRefused)
}

func TestNoRenewalGetsThrough(t *testing.T) {
	newClient(t)
	for name, mute := range map[string]func(*relay){
		"silence":  func(r *relay) { r.mute() },
		"refusals": func(r *relay) { r.close() },
	} {
		t.Run(name, func(t *testing.T) {
			between := newRelay(t)
			client, name := clientOf(t, between.address), job()
			err := client.Lock(t.Context(), name, func(ctx context.Context, lock *fencing.Lock) error {
				mute(between)
				select {
				case <-ctx.Done():
				case <-time.After(patience):
					t.Error("it was not told")
				}
				if err := put(context.Background(), lock.HTTPClient(), between.address, 1, "zombie"); !errors.Is(err, fencing.ErrLockLost) {
					t.Error(err)
				}
				return nil
			}, fencing.WithTTL(time.Second))
			lossOf(t, err, fencing.LostLate)
			newer := held(t, newClient(t), name) // by then the lease is over
			if err := newer.Check(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestTheFenceRefusesAWriteToATable(t *testing.T) {
	client := newClient(t)
	id, resource := account()
	err := client.Lock(t.Context(), resource, func(ctx context.Context, lock *fencing.Lock) error {
		overtake(t, resource, "1000")
		err := put(ctx, lock.HTTPClient(), gateway, id, "zombie")
		var stale *fencing.Stale
		if !errors.As(err, &stale) || stale.Fence() != "1000" || stale.RaisedBy() != "successor" || stale.Rejection() == "" {
			t.Error(err)
		}
		if ctx.Err() == nil {
			t.Error("the context goes on")
		}
		if err := put(context.Background(), lock.HTTPClient(), gateway, id, "zombie"); !errors.Is(err, fencing.ErrLockLost) {
			t.Error(err)
		}
		return nil
	})
	lossOf(t, err, fencing.LostStale)
	if records := rejections(t, resource); len(records) != 1 {
		t.Errorf("%d refusals on record", len(records))
	}
}

func objectsOf(lock *fencing.Lock) *s3.Client {
	return s3.New(s3.Options{
		BaseEndpoint: aws.String(gateway), UsePathStyle: true, Region: "us-east-1",
		Credentials: credentials.NewStaticCredentialsProvider("demo", "demo-secret", ""),
	}, awss3.Under(lock))
}

func TestABucketIsWrittenUnderTheLock(t *testing.T) {
	client := newClient(t)
	id, resource := account()
	key := func(name string) *string { return aws.String(fmt.Sprintf("accounts/%d/%s", id, name)) }
	bucket := aws.String("reports")
	lock := held(t, client, resource)
	objects := objectsOf(lock)
	write := func(name string) error {
		_, err := objects.PutObject(t.Context(), &s3.PutObjectInput{Bucket: bucket, Key: key(name), Body: strings.NewReader("120")})
		return err
	}
	if err := write("a"); err != nil {
		t.Fatal(err)
	}
	if _, err := objects.PutObject(t.Context(), &s3.PutObjectInput{
		Bucket: bucket, Key: aws.String("accounts/1/other"), Body: strings.NewReader("x"),
	}); err == nil || lock.Check() != nil {
		t.Error("a write to another resource:", err, lock.Check())
	}
	presigned, err := s3.NewPresignClient(objects).PresignPutObject(t.Context(), &s3.PutObjectInput{Bucket: bucket, Key: key("b")})
	if err != nil {
		t.Fatal(err)
	}
	upload := func() int {
		request, _ := http.NewRequestWithContext(t.Context(), http.MethodPut, presigned.URL, strings.NewReader("120"))
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		return response.StatusCode
	}
	if status := upload(); status != http.StatusOK {
		t.Error("presigned:", status)
	}
	overtake(t, resource, "1000")
	if status := upload(); status != http.StatusPreconditionFailed {
		t.Error("presigned, after the takeover:", status)
	}
	var stale *fencing.Stale
	if err := write("a"); !errors.As(err, &stale) || stale.Fence() != "1000" || stale.RaisedBy() != "successor" {
		t.Error(err)
	}
	lossOf(t, lock.Check(), fencing.LostStale)
	before := len(rejections(t, resource))
	if err := write("a"); !errors.Is(err, fencing.ErrLockLost) {
		t.Error(err)
	}
	if _, err := s3.NewPresignClient(objects).PresignPutObject(t.Context(), &s3.PutObjectInput{Bucket: bucket, Key: key("b")}); !errors.Is(err, fencing.ErrLockLost) {
		t.Error(err)
	}
	if records := len(rejections(t, resource)); records != before {
		t.Errorf("%d more were sent", records-before)
	}
}

func TestDeletionsThatAreRefused(t *testing.T) {
	client := newClient(t)
	id, resource := account()
	lock := held(t, client, resource)
	overtake(t, resource, "1000")
	var names []types.ObjectIdentifier
	for i := range 2 {
		names = append(names, types.ObjectIdentifier{Key: aws.String(fmt.Sprintf("accounts/%d/%d", id, i))})
	}
	_, err := objectsOf(lock).DeleteObjects(t.Context(), &s3.DeleteObjectsInput{
		Bucket: aws.String("reports"), Delete: &types.Delete{Objects: names},
	})
	if !errors.Is(err, fencing.ErrStale) {
		t.Error(err)
	}
	lossOf(t, lock.Check(), fencing.LostStale)
}

func TestASessionUnderAGuard(t *testing.T) {
	client := newClient(t)
	id, resource := account()
	resource = strings.Replace(resource, "accounts", "shipments", 1)
	config, err := pgxpool.ParseConfig(os.Getenv("FENCING_DATABASE"))
	if err != nil {
		t.Fatal(err)
	}
	lock := held(t, client, resource)
	pgxlock.Under(lock, config.ConnConfig)
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	write := func() error {
		_, err := pool.Exec(t.Context(), "INSERT INTO shipments (id, state) VALUES ($1, 'sent') ON CONFLICT (id) DO UPDATE SET state = 'again'", id)
		return pgxlock.Check(err)
	}
	if err := write(); err != nil {
		t.Fatal(err)
	}
	_, err = pool.Exec(t.Context(), "INSERT INTO shipments (id, state) VALUES ($1, 'sent')", id+1)
	if err := pgxlock.Check(err); !errors.Is(err, fencing.ErrRefused) || lock.Check() != nil {
		t.Error("a row of another resource:", err, lock.Check())
	}
	transaction, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer transaction.Rollback(context.Background()) //nolint:errcheck // or the pool waits for it
	overtake(t, resource, "1000")
	_, err = transaction.Exec(t.Context(), "UPDATE shipments SET state = 'zombie' WHERE id = $1", id)
	var stale *fencing.Stale
	if err := pgxlock.Check(err); !errors.As(err, &stale) || stale.Fence() != "1000" || stale.RaisedBy() != "successor" {
		t.Error(err)
	}
	lossOf(t, lock.Check(), fencing.LostStale)
	if err := transaction.Commit(t.Context()); err == nil {
		t.Error("it was committed")
	}
	if err := write(); !errors.Is(err, fencing.ErrLockLost) {
		t.Error("after the loss:", err)
	}
	reader, err := pgx.Connect(t.Context(), os.Getenv("FENCING_DATABASE"))
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close(context.Background()) //nolint:errcheck // the test is over
	var state string
	if err := reader.QueryRow(t.Context(), "SELECT state FROM shipments WHERE id = $1", id).Scan(&state); err != nil || state != "sent" {
		t.Error(state, err)
	}
}

// A process is stopped past the end of its lease. Its own client sends nothing afterwards. The gateway refuses what is sent
// past the client, with the name of the new holder.
func TestAZombie(t *testing.T) {
	client := newClient(t, fencing.WithName("successor"))
	id, resource := account()
	process := exec.Command(os.Args[0])
	process.Env = append(os.Environ(), "FENCING_ZOMBIE="+resource)
	process.Stderr = os.Stderr
	says, err := process.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	hears, err := process.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = process.Process.Kill(); _ = process.Wait() }()
	lines := bufio.NewScanner(says)
	expect := func(line string) {
		t.Helper()
		if !lines.Scan() || lines.Text() != line {
			t.Fatalf("%q instead of %q: %v", lines.Text(), line, lines.Err())
		}
	}
	expect("holds")
	if err := process.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	newer := held(t, client, resource)
	if err := put(t.Context(), newer.HTTPClient(), gateway, id, "successor"); err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(hears, "write\n")
	if err := process.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	expect("lost late true")
	expect("stale 1 2 " + newer.Holder())
	if records := rejections(t, resource); len(records) != 1 {
		t.Errorf("%d refusals on record: the other write was sent", len(records))
	}
}

// beZombie is the program that is stopped.
func beZombie(resource string) {
	var id int64
	_, _ = fmt.Sscanf(resource, "public.accounts/%d", &id)
	client, err := fencing.New(gateway, fencing.WithAPIKey("demo-key"))
	if err != nil {
		panic(err)
	}
	lock, err := client.Acquire(context.Background(), resource, fencing.WithTTL(2*time.Second))
	if err != nil {
		panic(err)
	}
	header := lock.Header()
	fmt.Println("holds")
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	err = put(context.Background(), lock.HTTPClient(), gateway, id, "zombie")
	var lost *fencing.LockLost
	if errors.As(err, &lost) {
		fmt.Println("lost", lost.Reason, lock.Context().Err() != nil)
	} else {
		fmt.Println(err)
	}
	err = put(context.Background(), &http.Client{Transport: past{header}}, gateway, id, "zombie")
	var stale *fencing.Stale
	if errors.As(err, &stale) {
		fmt.Println("stale", stale.Token(), stale.Fence(), stale.RaisedBy())
	} else {
		fmt.Println(err)
	}
	lock.Release()
	client.Close()
}

// past sends the headers of a lock without its client.
type past struct{ header http.Header }

func (p past) RoundTrip(request *http.Request) (*http.Response, error) {
	for name, values := range p.header {
		request.Header[name] = values
	}
	request.Header.Set("Authorization", "Bearer demo-key")
	return http.DefaultTransport.RoundTrip(request)
}

// relay stands between a client and the gateway, and can fall silent or end.
type relay struct {
	address  string
	listener net.Listener
	mutex    sync.Mutex
	isMute   bool
	open     []net.Conn
}

func newRelay(t *testing.T) *relay {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{address: "http://" + listener.Addr().String(), listener: listener}
	t.Cleanup(r.close)
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", strings.TrimPrefix(gateway, "http://"))
			if err != nil {
				_ = client.Close()
				return
			}
			r.mutex.Lock()
			r.open = append(r.open, client, server)
			r.mutex.Unlock()
			go r.pass(client, server)
			go r.pass(server, client)
		}
	}()
	return r
}

func (r *relay) pass(from, to net.Conn) {
	content := make([]byte, 1<<16)
	for {
		n, err := from.Read(content)
		if err != nil {
			_ = to.Close()
			return
		}
		r.mutex.Lock()
		isMute := r.isMute
		r.mutex.Unlock()
		if isMute {
			continue
		}
		if _, err := to.Write(content[:n]); err != nil {
			return
		}
	}
}

func (r *relay) mute() {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.isMute = true
}

func (r *relay) close() {
	_ = r.listener.Close()
	r.mutex.Lock()
	defer r.mutex.Unlock()
	for _, connection := range r.open {
		_ = connection.Close()
	}
}
