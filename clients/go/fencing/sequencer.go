package fencing

import (
	"errors"
	"strings"
)

// Mode tells whether a lock is exclusive or shared.
type Mode string

// The modes of a lock.
const (
	ExclusiveMode Mode = "exclusive"
	SharedMode    Mode = "shared"
)

// Sequencer is a token with the proof that the lock service has issued it. It is as secret as a write under the lock.
type Sequencer struct {
	Resource  string
	Mode      Mode
	Token     Token
	Signature string
}

const mostBytesOfASequencer = mostBytesOfAName + len(":exclusive:2147483647.9223372036854775807:") + 43

// ParseSequencer reads the wire form of a sequencer. It proves nothing: only the gateway has the key.
func ParseSequencer(text string) (Sequencer, error) {
	unreadable := errors.New("fencing: the text is not a sequencer") // It repeats nothing of the text.
	if len(text) > mostBytesOfASequencer {
		return Sequencer{}, unreadable
	}
	// From the right: a name may contain colons, and nothing after it does.
	rest, signature, _ := cutLast(text)
	rest, number, _ := cutLast(rest)
	resource, mode, found := cutLast(rest)
	token, err := ParseToken(number)
	if !found || err != nil || signature == "" || !isCanonical(resource) ||
		mode != string(ExclusiveMode) && mode != string(SharedMode) {
		return Sequencer{}, unreadable
	}
	for i := range len(signature) {
		if signature[i] >= 0x80 {
			return Sequencer{}, unreadable
		}
	}
	return Sequencer{resource, Mode(mode), token, signature}, nil
}

func cutLast(text string) (before, after string, found bool) {
	at := strings.LastIndexByte(text, ':')
	if at < 0 {
		return text, "", false
	}
	return text[:at], text[at+1:], true
}

// Text returns the wire form. It is not String, so that no message shows it by accident.
func (s Sequencer) Text() string {
	return s.Resource + ":" + string(s.Mode) + ":" + s.Token.String() + ":" + s.Signature
}
