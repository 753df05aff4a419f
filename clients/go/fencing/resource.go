package fencing

import (
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"unicode/utf8"
)

const (
	mostBytesOfAName = 512
	hexadecimal      = "0123456789ABCDEF"
)

var (
	canonicalName = regexp.MustCompile(`\A(?:[A-Za-z0-9\-._~!$&'()*+;:@/]|%[0-9A-F]{2})+\z`)
	foldedSegment = regexp.MustCompile(`(?:\A|/)\.\.?(?:/|\z)`)
	escapeInAName = regexp.MustCompile(`%[0-9A-F]{2}`)
	dotsOfAValue  = regexp.MustCompile(`\A\.\.?~*\z`)
)

func isLiteral(byte byte) bool {
	return 'a' <= byte && byte <= 'z' || 'A' <= byte && byte <= 'Z' || '0' <= byte && byte <= '9' ||
		strings.IndexByte("-._~!$&'()*+;:@", byte) >= 0
}

// CheckResource returns an error if name is not the canonical name of a resource. A canonical name stands in URLs,
// headers and JSON as it is. The error tells the canonical spelling if there is one.
func CheckResource(name string) error {
	if isCanonical(name) {
		return nil
	}
	if spelling := spellingOf(name); spelling != "" {
		return fmt.Errorf("fencing: %.80q is no canonical resource name: its canonical spelling is %s", name, spelling)
	}
	return fmt.Errorf("fencing: %.80q is no resource name: use 1 to %d bytes of path characters", name, mostBytesOfAName)
}

func isCanonical(name string) bool {
	if len(name) > mostBytesOfAName || !canonicalName.MatchString(name) || foldedSegment.MatchString(name) {
		return false
	}
	for _, escape := range escapeInAName.FindAllString(name, -1) {
		if decoded, err := url.PathUnescape(escape); err != nil || isLiteral(decoded[0]) {
			return false
		}
	}
	return true
}

// spellingOf returns the one canonical name that a name can only mean, or "" if there is none.
func spellingOf(name string) string {
	if name == "" || !utf8.ValidString(name) {
		return ""
	}
	segments := strings.Split(name, "/")
	for i, segment := range segments {
		raw, err := url.PathUnescape(segment)
		if err != nil {
			return ""
		}
		segments[i] = encoded(raw)
		if segments[i] == "." || segments[i] == ".." {
			segments[i] += "~"
		}
	}
	if spelling := strings.Join(segments, "/"); len(spelling) <= mostBytesOfAName {
		return spelling
	}
	return ""
}

func encoded(raw string) string {
	var text strings.Builder
	for i := range len(raw) {
		if isLiteral(raw[i]) {
			text.WriteByte(raw[i])
		} else {
			text.Write([]byte{'%', hexadecimal[raw[i]>>4], hexadecimal[raw[i]&15]})
		}
	}
	return text.String()
}

// EscapeValue returns a value as one part of a resource name: "order/" + EscapeValue(id).
func EscapeValue(value string) string {
	if dotsOfAValue.MatchString(value) {
		return value + "~"
	}
	return encoded(value)
}

// EscapePath returns a value whose slashes stay slashes, such as the key of an object, as a part of a resource name.
func EscapePath(value string) string {
	segments := strings.Split(value, "/")
	for i, segment := range segments {
		segments[i] = EscapeValue(segment)
	}
	return strings.Join(segments, "/")
}
