// The service that a strong team would write in place of the gateway: net/http, pgx, and a token in a column of the row.
//
// It has no record, no barrier, no batches and no grants. go_service DSN PORT
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net/http"
	"os"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	pool   = 16 // as many sessions as the gateway has
	fenced = `UPDATE tokened SET balance = $2, last_token = $3 WHERE id = $1 AND last_token <= $3`
	handed = `UPDATE tokened_handed SET balance = $2, last_token = $3 WHERE id = $1 AND last_token <= $3`
	fresh  = `INSERT INTO tokened_fresh (id, balance, last_token) VALUES ($1, $2, $3)`
	update = `UPDATE accounts SET balance = $2 WHERE id = $1`
	read   = `SELECT id, owner, balance, note FROM accounts WHERE id = $1`
)

type account struct {
	ID      int64   `json:"id"`
	Owner   *string `json:"owner"`
	Balance *int64  `json:"balance"`
	Note    *string `json:"note"`
}

type service struct {
	sessions *pgxpool.Pool
}

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: go_service DSN PORT")
	}
	config, err := pgxpool.ParseConfig(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	config.MaxConns = pool
	sessions, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		log.Fatal(err)
	}
	s := service{sessions}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /ready", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	mux.HandleFunc("PATCH /fenced/{id}", s.fenced(fenced))
	mux.HandleFunc("PATCH /handed/{id}", s.fenced(handed))
	mux.HandleFunc("POST /fresh", s.fenced(fresh))
	mux.HandleFunc("PATCH /accounts/{id}", s.patch)
	mux.HandleFunc("GET /accounts/{id}", s.get)
	log.Fatal(http.ListenAndServe("127.0.0.1:"+os.Args[2], mux))
}

// fenced answers writes by a statement that takes a number, a balance and a token.
func (s service) fenced(statement string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		token, err := strconv.ParseInt(r.Header.Get("Fencing-Token"), 10, 64)
		if err != nil || token < 1 {
			http.Error(w, "Send a positive Fencing-Token.", http.StatusBadRequest)
			return
		}
		if sent, ok := received(w, r); ok {
			s.change(w, r, http.StatusPreconditionFailed, statement, sent.ID, sent.Balance, token)
		}
	}
}

func (s service) patch(w http.ResponseWriter, r *http.Request) {
	if sent, ok := received(w, r); ok {
		s.change(w, r, http.StatusNotFound, update, sent.ID, sent.Balance)
	}
}

func (s service) get(w http.ResponseWriter, r *http.Request) {
	id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
	if err != nil {
		http.Error(w, "An account has a number.", http.StatusBadRequest)
		return
	}
	var found account
	err = s.sessions.QueryRow(r.Context(), read, id).Scan(&found.ID, &found.Owner, &found.Balance, &found.Note)
	if errors.Is(err, pgx.ErrNoRows) {
		http.Error(w, fmt.Sprintf("There is no account %d.", id), http.StatusNotFound)
		return
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(found); err != nil {
		log.Print(err)
	}
}

// received reads the body, and the number in the path if there is one.
func received(w http.ResponseWriter, r *http.Request) (sent account, ok bool) {
	err := json.NewDecoder(r.Body).Decode(&sent)
	if text := r.PathValue("id"); err == nil && text != "" {
		sent.ID, err = strconv.ParseInt(text, 10, 64)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
	}
	return sent, err == nil
}

// change executes a statement that concerns one row. none is the status if it has found no such row.
func (s service) change(w http.ResponseWriter, r *http.Request, none int, statement string, arguments ...any) {
	done, err := s.sessions.Exec(r.Context(), statement, arguments...)
	switch {
	case err != nil:
		http.Error(w, err.Error(), http.StatusInternalServerError)
	case done.RowsAffected() == 0:
		w.WriteHeader(none)
	default:
		w.WriteHeader(http.StatusNoContent)
	}
}
