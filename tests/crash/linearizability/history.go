package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/anishathalye/porcupine"
)

// line is a line of a history, as tests/crash/soak/checker.py describes it.
type line struct {
	Line, Who, Answer, Place, Deed, Resource string

	Tokens   map[string]token
	Token    token
	Writes   [][3]json.RawMessage
	Content  json.RawMessage
	Sent     float64
	Answered *float64
	Lasts    float64
	At       float64
	Places   map[string]json.RawMessage
	Fences   map[string]token

	Mode               string
	Storage, Resources []string
	Since, From, Until float64
}

// history is all operations of a file, sorted by the register that they are about.
type history struct {
	registers, locks map[string][]porcupine.Operation
	operations, open int
	clients          map[string]int
	resources        map[string]string // of places
	contents         map[write]seen
	raises           map[string][]raise
	claims           map[string]map[token]int64 // that may have raised a fence: when the first one was sent
	fenced           map[string]bool            // the resources that have a fence, or should
	objects          map[string]bool            // those with objects
	writers          map[string]int             // of places: how many operations have written there
	rewinds          []line
	journal          bool // raises are in a journal before they are committed
	last             line // the final state
}

// raise is a token that was acknowledged.
type raise struct {
	token    token
	answered int64
}

// seen says of a content how many have written it, and when it was first read.
type seen struct {
	writers int
	first   int64
}

const horizon = int64(forever - 1)

func nanoseconds(seconds float64) int64 { return int64(seconds * 1e9) }

func read(file io.Reader) (*history, error) {
	var lines []line
	scanner := bufio.NewScanner(file)
	scanner.Buffer(nil, 1<<28)
	for scanner.Scan() {
		var one line
		if err := json.Unmarshal(scanner.Bytes(), &one); err != nil {
			return nil, fmt.Errorf("line %d: %w", len(lines)+1, err)
		}
		if one.Line == "rewind" && (len(lines) == 0 || lines[0].Mode != "sync") {
			return nil, errors.New("a rewind loses what was acknowledged unless the mode is sync: this history is not judged")
		}
		lines = append(lines, one)
	}
	if len(lines) == 0 || lines[len(lines)-1].Line != "final" {
		return nil, errors.Join(scanner.Err(), errors.New("the history has no final state"))
	}
	h := &history{
		registers: map[string][]porcupine.Operation{}, locks: map[string][]porcupine.Operation{},
		clients: map[string]int{}, resources: map[string]string{},
		contents: map[write]seen{}, claims: map[string]map[token]int64{},
		raises: map[string][]raise{}, fenced: map[string]bool{}, objects: map[string]bool{},
		writers: map[string]int{}, last: lines[len(lines)-1], journal: lines[0].Mode == "sync",
	}
	h.judgeable(lines)
	return h, nil
}

// judgeable makes operations of registers of the lines.
func (h *history) judgeable(lines []line) {
	for _, one := range lines {
		for resource, presented := range one.Tokens {
			h.fenced[resource] = true
			if one.acknowledged() {
				h.raises[resource] = append(h.raises[resource], raise{presented, nanoseconds(*one.Answered)})
			}
		}
		if one.Line == "rewind" {
			h.rewinds = append(h.rewinds, one)
		}
		for _, written := range one.writes("") {
			h.contents[written] = seen{h.contents[written].writers + 1, horizon}
		}
		for _, raw := range one.Writes {
			place, resource := text(raw[0]), text(raw[1])
			h.writers[place]++
			h.resources[place] = resource
			h.objects[resource] = h.objects[resource] || strings.Contains(place, "objects/")
		}
	}
	for _, one := range lines {
		if one.Line == "read" {
			h.proves(write{one.Place, string(one.Content)}, nanoseconds(*one.Answered))
		}
		for place, content := range one.Places {
			h.proves(write{place, string(content)}, nanoseconds(one.At))
		}
	}
	for _, one := range lines {
		switch one.Line {
		case "operation":
			h.operations++
			h.operation(one)
		case "lease":
			h.operations++
			h.lease(one)
		case "read":
			h.operations++
			h.read(one.Who, one.Place, one.Content, nanoseconds(one.Sent), nanoseconds(*one.Answered))
		case "final":
			h.final(one)
		}
	}
	for _, one := range h.rewinds {
		h.rewind(one)
	}
	// Any number of them with one token raises the fence as the first one can.
	for resource, tokens := range h.claims {
		for claimed, sent := range tokens {
			if until := h.until(resource, func(other token) bool { return !other.below(claimed) }); until >= sent {
				h.add(h.fenceOf(resource), "not acknowledged", request{deed: writes, token: claimed, open: true}, sent, until)
			}
		}
	}
}

// until returns when such a token was first acknowledged. An open request that it overtakes can have no effect later.
func (h *history) until(resource string, overtakes func(token) bool) int64 {
	found := int64(forever)
	for _, one := range h.raises[resource] {
		if overtakes(one.token) {
			found = min(found, one.answered)
		}
	}
	return found
}

func (l line) acknowledged() bool {
	return l.Line == "operation" && (l.Answer == "done" || l.Answer == "idle")
}

func (h *history) proves(one write, at int64) {
	if known, written := h.contents[one]; written {
		h.contents[one] = seen{known.writers, min(known.first, at)}
	}
}

func (h *history) operation(one line) {
	sent, ended := nanoseconds(one.Sent), int64(forever)
	if one.Answered != nil {
		ended = nanoseconds(*one.Answered)
	}
	effective, open := one.acknowledged(), false
	if one.Answer == "unknown" || one.Answer == "nothing" {
		effective, open, ended = h.outcome(one)
		if ended < sent {
			open, ended = true, forever
		}
	}
	for resource, presented := range one.Tokens {
		asked := request{deed: writes, token: presented, open: open}
		switch {
		case one.Answer == "stale" && len(one.Tokens) == 1:
			asked.deed = refused
			h.add(h.fenceOf(resource), one.Who, asked, sent, ended)
		case effective:
			if one.Answer != "idle" {
				asked.places = one.writes(resource)
			}
			until := ended
			if open {
				until = h.until(resource, presented.below)
			}
			if until >= sent {
				h.add(h.contentsOf(resource), one.Who, asked, h.notBefore(asked.places, sent, until), until)
			}
			if h.objects[resource] && !open {
				asked.places = nil
				h.add(h.fenceOf(resource), one.Who, asked, sent, ended)
			}
		}
		// A write of an object can raise the fence, and be overtaken before it is sent. With a journal in mode sync, a raise
		// is there before its write. An opening of the database then raises the fence for it.
		if h.journal || (one.Answer != "stale" || h.objects[resource]) && (!effective || open) {
			if h.claims[resource] == nil {
				h.claims[resource] = map[token]int64{}
			}
			if known, is := h.claims[resource][presented]; !is || sent < known {
				h.claims[resource][presented] = sent
			}
		}
	}
}

// notBefore returns when a write can have taken effect at the earliest. If no other one wrote at its place, and nothing is
// there at the end, a rewind took it, and its copy was begun before. The search would find that out at its very end.
func (h *history) notBefore(places []write, sent, answered int64) int64 {
	for _, one := range places {
		if _, isThere := h.last.Places[one.place]; isThere || h.writers[one.place] > 1 {
			continue
		}
		since := int64(forever)
		for _, rewind := range h.rewinds {
			if isBelow(one.place, rewind.Storage) && nanoseconds(rewind.From) >= sent {
				since = min(since, nanoseconds(rewind.Since))
			}
		}
		if since < answered {
			sent = max(sent, since+1)
		}
	}
	return sent
}

// outcome says of a write without a clear answer whether it can matter, whether that stays open, and when it must have
// taken effect. If no client has read what it wrote, no other read depends on it. If one has, it took effect before.
func (h *history) outcome(one line) (effective, open bool, ended int64) {
	ended = forever
	for _, written := range one.writes("") {
		found := h.contents[written]
		switch {
		case written.content == nothing || found.writers > 1:
			effective = true
		case found.first < horizon:
			effective, ended = true, min(ended, found.first)
		}
	}
	return effective, ended == forever, ended
}

func (h *history) lease(one line) {
	deeds := map[string]deed{"acquire": acquires, "renew": renews, "release": ends, "break": ends}
	asked := request{deed: deeds[one.Deed], token: one.Token, sent: nanoseconds(one.Sent), lasts: nanoseconds(one.Lasts), by: forever}
	switch {
	case one.Answer == "done":
		asked.by = nanoseconds(*one.Answered)
	case one.Answer == "lost" && one.Deed != "acquire":
		asked.deed, asked.by = loses, nanoseconds(*one.Answered)
	case (one.Answer == "unknown" || one.Answer == "nothing") && asked.deed == ends:
		asked.open = true
	default:
		return // A lease without an answer, or one that lasts longer than its answer says, explains no other answer.
	}
	h.locks[one.Resource] = append(h.locks[one.Resource], h.made(one.Who, asked, asked.sent, asked.by))
}

// rewind lets the places of its storage and its locks go back. Fences stay: the mode keeps what was acknowledged.
func (h *history) rewind(one line) {
	since, begun, ended := nanoseconds(one.Since), nanoseconds(one.From), nanoseconds(one.Until)
	saved, back := request{deed: saves}, request{deed: rewinds, goBack: one.Storage}
	for resource := range h.fenced {
		if isBelow(resource, one.Resources) {
			h.add(h.contentsOf(resource), "rewind", saved, since, since)
			h.add(h.contentsOf(resource), "rewind", back, begun, ended)
		}
	}
	for name := range h.locks {
		if isBelow(name, one.Resources) {
			h.locks[name] = append(h.locks[name], h.made("rewind", saved, since, since), h.made("rewind", back, begun, ended))
		}
	}
}

func (h *history) read(who, place string, content json.RawMessage, sent, answered int64) {
	asked := request{deed: reads, places: []write{{place, string(content)}}}
	resource, known := h.resources[place]
	if !known {
		resource = place
	}
	h.add(h.contentsOf(resource), who, asked, sent, answered)
}

// final reads one place after the other. At one time, a wrong choice of the search would show only in any order of them.
func (h *history) final(one line) {
	at := nanoseconds(one.At)
	found := map[string]json.RawMessage{}
	for place := range h.resources {
		found[place] = json.RawMessage(nothing)
	}
	maps.Copy(found, one.Places)
	for _, place := range slices.Sorted(maps.Keys(found)) {
		at++
		h.read("final", place, found[place], at, at)
	}
	for resource := range one.Fences {
		h.fenced[resource] = true
	}
	for resource := range h.fenced {
		h.add(h.fenceOf(resource), "final", request{deed: looks, token: one.Fences[resource]}, at+1, at+1)
	}
}

// A row is in one transaction with its fence. An object is not: for a while the fence is up, while an older request may
// still take effect. So a resource with objects is two registers: one for who is refused, one for what is there.
func (h *history) fenceOf(resource string) string {
	if h.objects[resource] {
		return resource + ", fence"
	}
	return resource
}

func (h *history) contentsOf(resource string) string {
	if h.objects[resource] {
		return resource + ", contents"
	}
	return resource
}

func (h *history) add(register, who string, asked request, sent, ended int64) {
	h.registers[register] = append(h.registers[register], h.made(who, asked, sent, ended))
}

func (h *history) made(who string, asked request, sent, ended int64) porcupine.Operation {
	number, known := h.clients[who]
	if !known {
		number = len(h.clients)
		h.clients[who] = number
	}
	if asked.open {
		h.open++
	}
	return porcupine.Operation{ClientId: number, Input: asked, Call: sent, Return: ended}
}

// writes returns what it writes at places of a resource, or of all.
func (l line) writes(resource string) []write {
	var found []write
	for _, raw := range l.Writes {
		if resource == "" || text(raw[1]) == resource {
			found = append(found, write{text(raw[0]), string(raw[2])})
		}
	}
	return slices.Clip(found)
}

func text(raw json.RawMessage) string {
	var found string
	if json.Unmarshal(raw, &found) != nil {
		return string(raw)
	}
	return found
}
