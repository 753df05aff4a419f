package fencing

import (
	"cmp"
	"fmt"
	"regexp"
	"strconv"
)

// Token is a fencing token. It grows with every new holder of a lock.
type Token struct {
	epoch uint32
	value uint64
}

var tokenGrammar = regexp.MustCompile(`\A(?:(0|[1-9][0-9]{0,9})\.)?(0|[1-9][0-9]{0,18})\z`)

// ParseToken reads the wire form of a token: [epoch "."] value.
func ParseToken(text string) (Token, error) {
	match := tokenGrammar.FindStringSubmatch(text)
	if match == nil {
		return Token{}, fmt.Errorf("fencing: %.64q is not a fencing token", text)
	}
	var epoch uint64
	var err error
	if match[1] != "" {
		epoch, err = strconv.ParseUint(match[1], 10, 31)
	}
	if err == nil {
		var value uint64
		if value, err = strconv.ParseUint(match[2], 10, 63); err == nil {
			return Token{uint32(epoch), value}, nil
		}
	}
	return Token{}, fmt.Errorf("fencing: the token %q is out of range", text)
}

// Epoch returns the epoch of the token. A new one begins when an issuer has lost its counter.
func (t Token) Epoch() uint32 { return t.epoch }

// Value returns the number of the token within its epoch.
func (t Token) Value() uint64 { return t.value }

// Compare returns -1 if t is older than other, 1 if it is newer, and 0 if they are the same.
func (t Token) Compare(other Token) int {
	return cmp.Or(cmp.Compare(t.epoch, other.epoch), cmp.Compare(t.value, other.value))
}

// String returns the canonical wire form. Epoch 0 is not written.
func (t Token) String() string {
	if t.epoch == 0 {
		return strconv.FormatUint(t.value, 10)
	}
	return fmt.Sprintf("%d.%d", t.epoch, t.value)
}
