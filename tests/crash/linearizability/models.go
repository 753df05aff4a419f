package main

import (
	"fmt"
	"hash/maphash"
	"math"
	"slices"
	"strings"

	"github.com/anishathalye/porcupine"
)

type token [2]int64

func (t token) below(other token) bool { return slices.Compare(t[:], other[:]) < 0 }

func (t token) String() string { return fmt.Sprintf("%d.%d", t[0], t[1]) }

// nothing is what a place contains before the first write and after a delete. Contents are JSON.
const nothing = "null"

// forever is the end of an operation whose outcome stays open: later than all others.
const forever = math.MaxInt64

type deed int

const (
	writes  deed = iota // with a token: raises the fence, and changes places or none
	refused             // because of its token
	reads               // one place
	looks               // at the fence
	acquires
	renews
	ends  // releases or breaks its lease
	loses // is told that it has no lease
)

// request is the input of an operation. Porcupine knows answers only as what makes a request possible or not.
type request struct {
	deed   deed
	token  token
	places []write
	open   bool  // it may also have no effect
	sent   int64 // of a lease, with how long it lasts and the time of the answer
	lasts  int64
	by     int64
}

type write struct{ place, content string }

// register is the state of a fenced register. The newest write is the head of a list of all.
type register struct {
	fence    token
	contents *written
	sum      uint64 // of the contents: two states with one sum are taken to be equal
}

type written struct {
	write
	before *written
}

func (s register) at(place string) string {
	for one := s.contents; one != nil; one = one.before {
		if one.place == place {
			return one.content
		}
	}
	return nothing
}

var seed = maphash.MakeSeed()

func (s register) with(one write) register {
	s.sum ^= maphash.Comparable(seed, write{one.place, s.at(one.place)}) ^ maphash.Comparable(seed, one)
	s.contents = &written{one, s.contents}
	return s
}

// registers is the model of rows and of objects: a write with a token below the fence has no effect.
var registers = porcupine.Model{
	Init: func() any { return register{} },
	Step: func(before, input, _ any) (bool, any) {
		state, asked := before.(register), input.(request)
		switch asked.deed {
		case writes:
			if asked.token.below(state.fence) {
				return asked.open, state
			}
			state.fence = asked.token
			for _, one := range asked.places {
				state = state.with(one)
			}
			return true, state
		case refused:
			return asked.token.below(state.fence), state
		case reads:
			return state.at(asked.places[0].place) == asked.places[0].content, state
		default:
			return asked.token == state.fence, state
		}
	},
	Equal: func(one, other any) bool {
		return one.(register).fence == other.(register).fence && one.(register).sum == other.(register).sum
	},
	Hash:              func(state any) uint64 { return state.(register).sum ^ maphash.Comparable(seed, state.(register).fence) },
	DescribeOperation: func(input, _ any) string { return input.(request).String() },
	DescribeState: func(state any) string {
		told, seen := []string{"fence " + state.(register).fence.String()}, map[string]bool{}
		for one := state.(register).contents; one != nil; one = one.before {
			if !seen[one.place] && one.content != nothing {
				told = append(told, one.place+"="+one.content)
			}
			seen[one.place] = true
		}
		return strings.Join(told, " ")
	},
}

// lease is the state of a lock. Before expires no other holder can have it, unless the lease is released or broken.
type lease struct {
	held    bool
	token   token // of the last holder
	expires int64 // at the earliest
	now     int64 // at the earliest, as an expiry tells
}

// leases is the model of locks. An expiry is no operation: a request that needs one has happened after it.
var leases = porcupine.Model{
	Init: func() any { return lease{} },
	Step: func(before, input, _ any) (bool, any) {
		state, asked := before.(lease), input.(request)
		mine := state.held && state.token == asked.token
		if asked.deed == acquires && state.held || asked.deed == loses && mine {
			state.held, state.now = false, max(state.now, state.expires)
		}
		switch {
		case asked.by < state.now:
			return false, before
		case asked.deed == acquires && !state.token.below(asked.token) || asked.deed == renews && !mine:
			return false, before
		case asked.deed == acquires || asked.deed == renews:
			return true, lease{true, asked.token, max(state.now, asked.sent) + asked.lasts, state.now}
		case asked.deed == ends && mine:
			state.held = false
		}
		return true, state
	},
	DescribeOperation: func(input, _ any) string { return input.(request).String() },
	DescribeState: func(state any) string {
		if state.(lease).held {
			return "held with " + state.(lease).token.String()
		}
		return "free after " + state.(lease).token.String()
	},
}

func (r request) String() string {
	names := []string{"write", "stale", "read", "fence", "acquire", "renew", "end", "lost"}
	told := names[r.deed]
	if r.deed != reads {
		told += " " + r.token.String()
	}
	for _, one := range r.places {
		told += " " + one.place + "=" + one.content
	}
	if r.open {
		told += " ?"
	}
	return told
}
