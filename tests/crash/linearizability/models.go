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
	ends    // releases or breaks its lease
	loses   // is told that it has no lease
	saves   // a copy of the storage begins
	rewinds // the storage goes back to a moment since then
)

// request is the input of an operation. Porcupine knows answers only as what makes a request possible or not.
type request struct {
	deed   deed
	token  token
	places []write
	goBack []string // the beginnings of the places that a rewind puts back
	open   bool     // it may also have no effect
	sent   int64    // of a lease, with how long it lasts and the time of the answer
	lasts  int64
	by     int64
}

type write struct{ place, content string }

// register is the state of a fenced register. The newest write is the head of a list of all.
type register struct {
	fence    token
	contents *written
	sum      uint64 // of the contents: two states with one sum are taken to be equal
	past     former[*written]
}

// former has the states since a copy began, of which a rewind brings one back. It is empty while there is no copy.
type former[State any] struct {
	newest *link[State]
	sum    uint64
}

type link[State any] struct {
	state  State
	before *link[State]
}

func (f former[State]) and(state State, sum uint64) former[State] {
	return former[State]{&link[State]{state, f.newest}, f.sum + maphash.Comparable(seed, sum)}
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

// remembered is the state after a write, which a rewind may bring back.
func (s register) remembered() register {
	if s.past.newest != nil {
		s.past = s.past.and(s.contents, s.sum)
	}
	return s
}

// rewound returns what may be left: the places as they were at one moment since the copy began. The fence stays.
func (s register) rewound(prefixes []string) []any {
	var all []any
	for one := s.past.newest; one != nil; one = one.before {
		then, back := register{contents: one.state}, register{fence: s.fence, contents: s.contents, sum: s.sum}
		for each := s.contents; each != one.state; each = each.before {
			if isBelow(each.place, prefixes) && back.at(each.place) != then.at(each.place) {
				back = back.with(write{each.place, then.at(each.place)})
			}
		}
		all = append(all, back)
	}
	return all
}

func isBelow(name string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(one string) bool { return strings.HasPrefix(name, one) })
}

// registers is the model of rows and of objects: a write with a token below the fence has no effect.
var registers = (&porcupine.NondeterministicModel{
	Init: func() []any { return []any{register{}} },
	Step: func(before, input, _ any) []any {
		state, asked := before.(register), input.(request)
		switch asked.deed {
		case writes:
			if asked.token.below(state.fence) {
				return when(asked.open, state)
			}
			state.fence = asked.token
			for _, one := range asked.places {
				state = state.with(one)
			}
			return []any{state.remembered()}
		case refused:
			return when(asked.token.below(state.fence), state)
		case reads:
			return when(state.at(asked.places[0].place) == asked.places[0].content, state)
		case saves:
			state.past = former[*written]{}.and(state.contents, state.sum)
			return []any{state}
		case rewinds:
			return state.rewound(asked.goBack)
		default:
			return when(asked.token == state.fence, state)
		}
	},
	Equal: func(one, other any) bool {
		here, there := one.(register), other.(register)
		return here.fence == there.fence && here.sum == there.sum && here.past.sum == there.past.sum
	},
	Hash: func(state any) uint64 {
		hashed := state.(register)
		return hashed.sum ^ hashed.past.sum ^ maphash.Comparable(seed, hashed.fence)
	},
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
}).ToModel()

func when(possible bool, state any) []any {
	if !possible {
		return nil
	}
	return []any{state}
}

// lease is the state of a lock. Before expires no other holder can have it, unless the lease is released or broken.
type lease struct {
	held    bool
	token   token // of the last holder
	newest  token // that was ever given
	expires int64 // at the earliest
	now     int64 // at the earliest, as an expiry tells
}

// locked is a lease, and what a rewind may bring back.
type locked struct {
	lease
	past former[lease]
}

// leases is the model of locks. An expiry is no operation: a request that needs one has happened after it.
var leases = (&porcupine.NondeterministicModel{
	Init: func() []any { return []any{locked{}} },
	Step: func(before, input, _ any) []any {
		state, asked := before.(locked), input.(request)
		switch asked.deed {
		case saves:
			state.past = former[lease]{}.and(state.lease, state.sum())
			return []any{state}
		case rewinds:
			return state.rewound()
		}
		next, possible := state.after(asked)
		if !possible {
			return nil
		}
		state.lease = next
		if state.past.newest != nil {
			state.past = state.past.and(next, state.sum())
		}
		return []any{state}
	},
	Equal: func(one, other any) bool {
		return one.(locked).lease == other.(locked).lease && one.(locked).past.sum == other.(locked).past.sum
	},
	Hash:              func(state any) uint64 { return state.(locked).sum() ^ state.(locked).past.sum },
	DescribeOperation: func(input, _ any) string { return input.(request).String() },
	DescribeState: func(state any) string {
		if state.(locked).held {
			return "held with " + state.(locked).token.String()
		}
		return "free after " + state.(locked).newest.String()
	},
}).ToModel()

func (l lease) sum() uint64 { return maphash.Comparable(seed, l) }

// rewound returns what may be left: the holder of one moment since the copy began, or none. Tokens go on growing.
func (l locked) rewound() []any {
	all := []any{locked{lease: lease{newest: l.newest, now: l.now}}}
	for one := l.past.newest; one != nil; one = one.before {
		back := one.state
		back.newest, back.now = l.newest, l.now
		all = append(all, locked{lease: back})
	}
	return all
}

func (l lease) after(asked request) (lease, bool) {
	mine := l.held && l.token == asked.token
	if asked.deed == acquires && l.held || asked.deed == loses && mine {
		l.held, l.now = false, max(l.now, l.expires)
	}
	switch {
	case asked.by < l.now:
		return l, false
	case asked.deed == acquires && !l.newest.below(asked.token) || asked.deed == renews && !mine:
		return l, false
	case asked.deed == acquires:
		return lease{true, asked.token, asked.token, max(l.now, asked.sent) + asked.lasts, l.now}, true
	case asked.deed == renews:
		return lease{true, l.token, l.newest, max(l.now, asked.sent) + asked.lasts, l.now}, true
	case asked.deed == ends && mine:
		l.held = false
	}
	return l, true
}

func (r request) String() string {
	names := []string{"write", "stale", "read", "fence", "acquire", "renew", "end", "lost", "copy", "rewind"}
	told := names[r.deed]
	if r.deed != reads && r.deed < saves {
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
