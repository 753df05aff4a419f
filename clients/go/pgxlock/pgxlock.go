// Package pgxlock makes connections of pgx write guarded tables of PostgreSQL under a lock.
//
//	config, err := pgxpool.ParseConfig("postgresql://app@db/shop")
//	pgxlock.Under(lock, config.ConnConfig)
//	pool, err := pgxpool.NewWithConfig(ctx, config)
//
// A guard in the database (gateway guard install) checks the token of each write. Without one, the token that a session
// shows protects nothing.
package pgxlock

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"fencing-gateway.example/fencing-gateway.git/clients/go/fencing"
)

// Under makes the connections of a configuration show the token of a lock, for as long as they exist.
//
//   - Nothing is sent under a lock that is lost: the connection breaks with a [*fencing.LockLost].
//   - If a guard refuses a write, the lock is lost. [Check] makes a typed error of it.
//
// The barrier of the lock has to have been raised. PgBouncer accepts no such settings at the start of a session. Behind
// it, begin each transaction with SELECT fencing.hold(resource, token, holder) instead.
func Under(lock *fencing.Lock, config *pgx.ConnConfig) {
	settings := maps.Clone(config.RuntimeParams)
	if settings == nil {
		settings = map[string]string{}
	}
	maps.Copy(settings, lock.PostgresSettings())
	config.RuntimeParams = settings

	connected := config.AfterNetConnect
	config.AfterNetConnect = func(ctx context.Context, config *pgconn.Config, connection net.Conn) (net.Conn, error) {
		if connected != nil {
			var err error
			if connection, err = connected(ctx, config, connection); err != nil {
				return connection, err
			}
		}
		return &fenced{connection, lock}, nil
	}
	inspect := config.OnPgError
	config.OnPgError = func(connection *pgconn.PgConn, err *pgconn.PgError) bool {
		if stale := (*fencing.Stale)(nil); errors.As(Check(err), &stale) {
			lock.Overtaken(stale)
		}
		return inspect == nil || inspect(connection, err)
	}
}

// fenced is a connection that reads the clock of its lock before it sends.
type fenced struct {
	net.Conn
	lock *fencing.Lock
}

func (c *fenced) Write(content []byte) (int, error) {
	if err := c.lock.Check(); err != nil {
		return 0, err
	}
	return c.Conn.Write(content)
}

// refusals are the errors of guards by their SQLSTATE, and the statuses that the gateway gives them.
var refusals = map[string]int{"FN412": 412, "FN428": 428, "FN422": 422, "FN400": 400, "FN409": 409, "FN503": 503}

// Check returns the typed error of a refusal by a guard, which wraps err. It returns any other error as it is.
func Check(err error) error {
	var refused *pgconn.PgError
	if !errors.As(err, &refused) || refusals[refused.Code] == 0 {
		return err
	}
	facts := map[string]any{}
	_ = json.Unmarshal([]byte(refused.Detail), &facts) // Without facts, it is still a refusal.
	code, _ := facts["code"].(string)
	return errors.Join(fencing.NewRefusal(refusals[refused.Code], code, refused.Message, refused.Hint, facts), err)
}
