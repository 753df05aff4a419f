package fencing

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"maps"
	"net/http"
	"regexp"
	"strings"
	"unicode"
)

const mostBytesOfAnAnswer = 1 << 20

// S3 has codes of its own for the refusals of the fence. It shares the others with the store.
var codesOfS3 = map[string]string{
	"StaleFencingToken":       "token-stale",
	"DuplicateFencingToken":   "token-duplicate",
	"ImplausibleFencingToken": "token-implausible",
	"FencingOutcomeUnknown":   "outcome-unknown",
	"ServiceUnavailable":      "unavailable",
}

// PostgREST's keys and S3's elements contain these facts only as words.
var factsInWords = []*regexp.Regexp{
	regexp.MustCompile(`Resource (?P<resource>\S+): the write presented token (?P<token>\S+), the fence is (?P<fence>\S+), ` +
		`raised by (?P<raised_by>.*) at (?P<raised_at>\S+); rejection (?P<rejection>\S+)\.`),
	regexp.MustCompile(`The fencing token (?P<token>\S+) of (?P<resource>\S+) has been overtaken by (?P<fence>[0-9.]*[0-9])\.`),
	regexp.MustCompile(`Another holder, (?P<raised_by>.*), uses the fencing token (?P<token>\S+) of (?P<resource>\S+)\.`),
}

var proxyStatus = regexp.MustCompile(`\berror=([\w.-]+)`)

// CheckResponse returns nil for an answer below 400, else the typed error that the answer means.
//
// The body can still be read afterwards.
func CheckResponse(response *http.Response) error {
	if response.StatusCode < http.StatusBadRequest {
		return nil
	}
	return refusalOf(response)
}

// refusalOf returns the error that an answer from 400 on means. The body can still be read afterwards.
func refusalOf(response *http.Response) Error {
	if response.Body == nil {
		return refusalFrom(response.StatusCode, response.Header, nil)
	}
	// A body that breaks off may still tell something, and so do the headers.
	read, _ := io.ReadAll(io.LimitReader(response.Body, mostBytesOfAnAnswer))
	response.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(read), response.Body), response.Body}
	if strings.EqualFold(response.Header.Get("Content-Encoding"), "gzip") {
		// A program that sends its own Accept-Encoding gets the body as it came.
		if unpacked, err := gzip.NewReader(bytes.NewReader(read)); err == nil {
			read, _ = io.ReadAll(io.LimitReader(unpacked, mostBytesOfAnAnswer))
		}
	}
	return refusalFrom(response.StatusCode, response.Header, read)
}

func refusalFrom(status int, header http.Header, body []byte) Error {
	err := readRefusal(status, header, body)
	detail := err.Detail()
	detail.retryAfter, detail.asksToWait = retryAfter(header)
	return err
}

func readRefusal(status int, header http.Header, body []byte) Error {
	if document, isObject := decoded(body).(map[string]any); isObject {
		code, hasCode := document["code"]
		detail, hasDetail := document["detail"]
		message, hasMessage := document["message"]
		name, _ := code.(string)
		switch {
		case hasCode && hasDetail:
			facts := maps.Clone(document)
			for _, standard := range []string{"type", "title", "status", "detail", "code", "advice"} {
				delete(facts, standard)
			}
			advice, _ := document["advice"].(string)
			return NewRefusal(status, name, inWords(detail), advice, facts)
		case hasCode && hasMessage:
			advice, _ := document["hint"].(string)
			facts := factsIn(inWords(message), inWords(document["details"]))
			return NewRefusal(status, name, inWords(message), advice, facts)
		}
	}
	if bytes.Contains(body, []byte("<Error>")) {
		elements := elementsOf(body)
		facts := factsIn(elements["Message"])
		for name, text := range elements {
			if name != "Code" && name != "Message" && name != "Resource" {
				facts[inSnakeCase(name)] = text
			}
		}
		return NewRefusal(status, elements["Code"], elements["Message"], "", facts)
	}
	code := ""
	if shown := proxyStatus.FindStringSubmatch(header.Get("Proxy-Status")); shown != nil {
		code = shown[1]
	}
	return NewRefusal(status, code, fmt.Sprintf("The answer was %d.", status), "", nil)
}

// NewRefusal returns the typed error of a code of the gateway, or of S3's code for it. The status decides for a foreign
// code: only a 4xx means that nothing was done. Without facts, they are those in the message. It is for integrations that
// read answers by themselves.
func NewRefusal(status int, code, message, advice string, facts map[string]any) Error {
	if facts == nil {
		facts = factsIn(message)
	}
	own, isOfS3 := codesOfS3[code]
	if !isOfS3 {
		own = code
	}
	about := func(standard string) Details {
		if advice != "" {
			standard = advice
		}
		return Details{Message: message, Advice: standard, Code: own, Status: status, Facts: facts}
	}
	switch own {
	case "token-stale", "token-duplicate":
		return &Stale{about("Stop: a newer holder has taken over, and trying again cannot succeed.")}
	case "token-implausible":
		return &Implausible{about("Use the token of your lock service; ask the operator if its counter was reset.")}
	case "lease-lost":
		return &LockLost{about("Stop working under its token, and acquire the lock again."), LostGone}
	case "lock-held":
		err := &NotAcquired{about("Try again later, or wait longer.")}
		if holder := err.Holder(); holder != "" {
			err.Message = fmt.Sprintf("The lock %s is held by %s.", err.Resource(), holder)
		}
		return err
	case "unavailable", "database-closed", "journal-unusable", "naming-changed", "sessions-shared":
		return &Unavailable{about("Try again.")}
	case "outcome-unknown":
		return &OutcomeUnknown{about("Read the current state, then write again with the same token.")}
	}
	own = code
	switch {
	case status == http.StatusTooManyRequests:
		return &Unavailable{about("Try again.")}
	case status >= 500 && status != http.StatusNotImplemented:
		return &OutcomeUnknown{about("Read the current state, then write again with the same token.")}
	}
	return &Refused{about("")}
}

// isOfTheFence reports whether the fence has refused the token for good. Another 412 is the program's own affair.
func isOfTheFence(err Error) bool {
	_, isStale := err.(*Stale)
	code := err.Detail().Code
	return isStale || code == "token-used" || code == "UsedFencingToken"
}

// decoded returns JSON, with numbers as they are written; nil for anything else.
func decoded(body []byte) any {
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	var value any
	if decoder.Decode(&value) != nil {
		return nil
	}
	if _, err := decoder.Token(); err != io.EOF {
		return nil
	}
	return value
}

func inWords(value any) string {
	if text, isText := value.(string); isText {
		return text
	}
	return fmt.Sprint(value)
}

func factsIn(sentences ...string) map[string]any {
	facts := map[string]any{}
	for _, sentence := range sentences {
		for _, pattern := range factsInWords {
			if match := pattern.FindStringSubmatch(sentence); match != nil {
				for i, name := range pattern.SubexpNames()[1:] {
					facts[name] = match[i+1]
				}
			}
		}
	}
	return facts
}

// elementsOf returns the elements of XML that have only text.
func elementsOf(body []byte) map[string]string {
	elements := map[string]string{}
	decoder := xml.NewDecoder(bytes.NewReader(body))
	open, text := "", ""
	for {
		token, err := decoder.Token()
		if err != nil {
			return elements
		}
		switch part := token.(type) {
		case xml.StartElement:
			open, text = part.Name.Local, ""
		case xml.CharData:
			text += string(part)
		case xml.EndElement:
			if part.Name.Local == open {
				elements[open] = text
			}
			open = ""
		}
	}
}

func inSnakeCase(name string) string {
	var text strings.Builder
	var before rune
	for _, letter := range name {
		if unicode.IsUpper(letter) && (unicode.IsLower(before) || unicode.IsDigit(before)) {
			text.WriteByte('_')
		}
		text.WriteRune(unicode.ToLower(letter))
		before = letter
	}
	return text.String()
}
