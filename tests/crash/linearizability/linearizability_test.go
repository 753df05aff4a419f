package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const never = -1

func operation(answer string, value int, sent, answered float64, place, content string) string {
	written := ""
	if place != "" {
		written = fmt.Sprintf(`["%s", "job/1", %s]`, place, content)
	}
	return fmt.Sprintf(`{"line": "operation", "who": "holder %d", "tokens": {"job/1": [0, %d]}, "writes": [%s],
		"answer": "%s", "sent": %v, "answered": %s}`, value, value, written, answer, sent, time_(answered))
}

func time_(seconds float64) string {
	if seconds == never {
		return "null"
	}
	return fmt.Sprint(seconds)
}

func row(answer string, value int, sent, answered float64, content string) string {
	return operation(answer, value, sent, answered, "rows/1", content)
}

func object(answer string, value int, sent, answered float64, content string) string {
	return operation(answer, value, sent, answered, "objects/1", content)
}

func barrier(answer string, value int, sent, answered float64) string {
	return operation(answer, value, sent, answered, "", "")
}

func look(place, content string, sent, answered float64) string {
	return fmt.Sprintf(`{"line": "read", "who": "reader", "place": "%s", "content": %s, "sent": %v, "answered": %v}`,
		place, content, sent, answered)
}

func lock(deed, answer string, value int, lasts, sent, answered float64) string {
	return fmt.Sprintf(`{"line": "lease", "who": "holder %d", "deed": "%s", "resource": "lock/1", "token": [0, %d],
		"lasts": %v, "answer": "%s", "sent": %v, "answered": %s}`, value, deed, value, lasts, answer, sent, time_(answered))
}

func final(fence int, places string) string {
	return fmt.Sprintf(`{"line": "final", "at": 99, "places": {%s}, "fences": {"job/1": [0, %d]}, "refusals": []}`, places, fence)
}

func judged(t *testing.T, timeout time.Duration, lines ...string) verdict {
	t.Helper()
	name := filepath.Join(t.TempDir(), "history")
	var text strings.Builder
	for _, one := range lines {
		text.WriteString(strings.Join(strings.Fields(one), " ") + "\n")
	}
	if err := os.WriteFile(name, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	found, err := judge(name, timeout, filepath.Dir(name))
	if err != nil {
		t.Fatal(err)
	}
	for _, picture := range found.Pictures {
		if _, err := os.Stat(picture); err != nil {
			t.Error(err)
		}
	}
	return found
}

var first, second = row("done", 1, 1, 2, "101"), row("done", 2, 3, 4, "102")

// The database stops at 20, and comes back at 21 as a copy that was begun at 10. Objects do not go back.
var mode, rewind = `{"line": "mode", "mode": "sync"}`,
	`{"line": "rewind", "storage": ["rows/"], "resources": ["job/", "lock/"], "since": 10, "from": 20, "until": 21}`

func TestHonestHistories(t *testing.T) {
	for name, lines := range map[string][]string{
		"one after the other": {first, second, row("stale", 1, 5, 6, "103"), final(2, `"rows/1": 102`)},
		"an open write that took effect": {
			row("nothing", 1, 1, never, "103"), look("rows/1", "103", 2, 3), second, final(2, `"rows/1": 102`),
		},
		"an open write without an effect": {row("unknown", 1, 1, 2, "103"), second, final(2, `"rows/1": 102`)},
		"an open write that comes late":   {first, row("unknown", 1, 3, 4, "103"), look("rows/1", "101", 5, 6), final(1, `"rows/1": 103`)},
		"an open delete":                  {first, row("nothing", 1, 3, never, "null"), look("rows/1", "101", 5, 6), final(1, "")},
		"an open barrier that refuses":    {first, barrier("nothing", 2, 3, never), row("stale", 1, 5, 6, "103"), final(2, `"rows/1": 101`)},
		"a write that matches no row":     {first, row("idle", 2, 3, 4, "102"), row("stale", 1, 5, 6, "103"), final(2, `"rows/1": 101`)},
		"at the same time":                {row("done", 1, 1, 9, "101"), row("done", 2, 1, 9, "102"), look("rows/1", "101", 2, 3), final(2, `"rows/1": 102`)},
		"an object after the fence is up, and before the barrier is acknowledged": {
			object("nothing", 1, 1, never, "101"), barrier("done", 2, 2, 8), object("stale", 1, 3, 4, "103"),
			look("objects/1", "null", 5, 5.5), look("objects/1", "101", 6, 7), final(2, `"objects/1": 101`),
		},
		"an object whose write is overtaken after it has raised the fence": {
			object("stale", 2, 1, 9, "102"), object("stale", 1, 2, 3, "101"), object("done", 3, 4, 8, "103"), final(3, `"objects/1": 103`),
		},
		"a lock that is released": {
			lock("acquire", "done", 1, 10, 1, 2), lock("renew", "done", 1, 10, 5, 6), lock("release", "done", 1, 0, 7, 8),
			lock("acquire", "done", 2, 10, 7.5, 9), lock("renew", "lost", 1, 10, 9, 9.5), final(0, ""),
		},
		"a lock that expires": {
			lock("acquire", "done", 1, 10, 1, 2), lock("acquire", "done", 2, 10, 10, 11.5), lock("renew", "lost", 1, 10, 12, 13), final(0, ""),
		},
		"a raise that an opening finds in the journal, before its write": {
			mode, first, row("done", 3, 3, 9, "103"), row("stale", 2, 4, 5, "102"), look("rows/1", "101", 6, 7), final(3, `"rows/1": 103`),
		},
		"a raise that an opening finds in the journal, of a write that is overtaken": {
			mode, first, row("stale", 3, 3, 9, "103"), row("stale", 2, 4, 5, "102"), row("done", 4, 6, 7, "104"), final(4, `"rows/1": 104`),
		},
		"a row that a rewind takes": {
			mode, first, row("done", 2, 11, 12, "102"), rewind, look("rows/1", "101", 22, 23), row("stale", 1, 24, 25, "103"), final(2, `"rows/1": 101`),
		},
		"a row that a rewind leaves": {
			mode, first, row("done", 2, 11, 12, "102"), row("done", 2, 13, 14, "103"), rewind, look("rows/1", "102", 22, 23), final(2, `"rows/1": 102`),
		},
		"a lock that a rewind takes":   {mode, lock("acquire", "done", 1, 30, 11, 12), rewind, lock("acquire", "done", 2, 30, 22, 23), final(0, "")},
		"a lock that a rewind returns": {mode, lock("acquire", "done", 1, 30, 1, 2), lock("release", "done", 1, 0, 11, 12), rewind, lock("renew", "done", 1, 30, 22, 23), final(0, "")},
		"a lock that is broken": {
			lock("acquire", "done", 1, 10, 1, 2), lock("break", "nothing", 1, 0, 3, never), lock("acquire", "done", 2, 10, 4, 5), final(0, ""),
		},
	} {
		t.Run(name, func(t *testing.T) {
			if found := judged(t, time.Minute, lines...); len(found.Broken)+len(found.Undecided) > 0 {
				t.Error(found)
			}
		})
	}
}

func TestBrokenPromises(t *testing.T) {
	for name, lines := range map[string][]string{
		"a stale write is done":                 {first, second, row("done", 1, 5, 6, "103"), final(2, `"rows/1": 103`)},
		"a stale write of an object is done":    {barrier("done", 2, 1, 2), object("done", 1, 3, 4, "101"), final(2, `"objects/1": 101`)},
		"a stale barrier is done":               {second, barrier("done", 1, 5, 6), final(2, `"rows/1": 102`)},
		"a late write takes effect":             {row("nothing", 1, 1, never, "101"), second, look("rows/1", "102", 5, 6), look("rows/1", "101", 7, 8), final(2, `"rows/1": 101`)},
		"a late delete of an object":            {object("done", 1, 1, 2, "101"), object("nothing", 1, 3, never, "null"), barrier("done", 2, 4, 5), look("objects/1", "101", 6, 7), final(2, "")},
		"a late write of an object":             {object("nothing", 1, 1, never, "101"), barrier("done", 2, 2, 3), look("objects/1", "null", 4, 5), final(2, `"objects/1": 101`)},
		"a refused write takes effect":          {second, row("stale", 1, 5, 6, "103"), look("rows/1", "103", 7, 8), final(2, `"rows/1": 102`)},
		"a write that was not done took effect": {row("not done", 2, 1, 2, "103"), final(2, `"rows/1": 103`)},
		"an acknowledged write is lost":         {first, second, final(2, `"rows/1": 101`)},
		"an acknowledged object is lost":        {object("done", 1, 1, 2, "101"), final(1, "")},
		"a read of what was before":             {first, second, look("rows/1", "101", 5, 6), final(2, `"rows/1": 102`)},
		"a read of what nobody wrote":           {first, look("rows/1", "7", 5, 6), final(1, `"rows/1": 101`)},
		"a read of what is not sent yet":        {look("rows/1", "101", 0.1, 0.2), first, final(1, `"rows/1": 101`)},
		"a refusal without a newer token":       {first, row("stale", 1, 3, 4, "103"), final(1, `"rows/1": 101`)},
		"a fence that goes back":                {barrier("done", 2, 1, 2), final(1, "")},
		"a fence that nobody raised":            {first, final(3, `"rows/1": 101`)},
		"a request that takes effect twice": {
			first, row("done", 1, 3, 4, "102"), look("rows/1", "102", 5, 6), look("rows/1", "101", 7, 8), final(1, `"rows/1": 101`),
		},
		"two holders at once": {
			lock("acquire", "done", 1, 10, 1, 2), lock("acquire", "done", 2, 10, 4, 5), final(0, ""),
		},
		"two holders of one token": {
			lock("acquire", "done", 1, 10, 1, 2), lock("release", "done", 1, 0, 3, 4), lock("acquire", "done", 1, 10, 5, 6), final(0, ""),
		},
		"a token that goes back": {
			lock("acquire", "done", 2, 1, 1, 2), lock("acquire", "done", 1, 10, 5, 6), final(0, ""),
		},
		"a renewal of a lock that another has": {
			lock("acquire", "done", 1, 1, 1, 2), lock("acquire", "done", 2, 10, 3, 4), lock("renew", "done", 1, 10, 5, 6), final(0, ""),
		},
		"a lock that ends before its time": {
			lock("acquire", "done", 1, 10, 1, 2), lock("renew", "done", 1, 10, 8, 9), lock("acquire", "done", 2, 10, 12, 13), final(0, ""),
		},
		"a lock that is lost before its time": {lock("acquire", "done", 1, 10, 1, 2), lock("renew", "lost", 1, 10, 3, 4), final(0, "")},
		"a fence that is up before its write": {first, row("done", 3, 3, 9, "103"), row("stale", 2, 4, 5, "102"), look("rows/1", "101", 6, 7), final(3, `"rows/1": 103`)},
		"a refusal after which an older write is done": {
			mode, first, row("done", 3, 3, 9, "103"), row("stale", 2, 4, 5, "102"), row("done", 2, 6, 7, "104"), final(3, `"rows/1": 103`),
		},
		"a fence that a rewind takes":         {mode, first, row("done", 2, 11, 12, "102"), rewind, row("done", 1, 24, 25, "103"), final(2, `"rows/1": 103`)},
		"a rewind to before the copy":         {mode, first, second, rewind, look("rows/1", "101", 22, 23), final(2, `"rows/1": 101`)},
		"a rewind to two moments":             {mode, first, row("done", 2, 11, 12, "102"), rewind, look("rows/1", "101", 22, 23), look("rows/1", "102", 24, 25), final(2, `"rows/1": 102`)},
		"a rewind that takes objects":         {mode, object("done", 1, 11, 12, "101"), rewind, look("objects/1", "null", 22, 23), final(1, "")},
		"a token that is given again":         {mode, lock("acquire", "done", 1, 1, 11, 12), rewind, lock("acquire", "done", 1, 30, 22, 23), final(0, "")},
		"two holders after a rewind":          {mode, rewind, lock("acquire", "done", 1, 30, 22, 23), lock("acquire", "done", 2, 30, 24, 25), final(0, "")},
		"a row of before, after a newer read": {mode, first, row("done", 2, 11, 12, "102"), rewind, row("done", 2, 22, 23, "103"), look("rows/1", "102", 24, 25), final(2, `"rows/1": 102`)},
	} {
		t.Run(name, func(t *testing.T) {
			if found := judged(t, time.Minute, lines...); len(found.Broken) == 0 || len(found.Pictures) != len(found.Broken) {
				t.Error(found)
			}
		})
	}
}

func TestWhatIsNotDecidedInTimeIsNoSuccess(t *testing.T) {
	lines := []string{first}
	for i := range 24 { // Deletes that nobody knows the outcome of, and a content that nobody wrote.
		lines = append(lines, operation("nothing", 1, 3, never, fmt.Sprint("rows/", i), "null"))
	}
	lines = append(lines, look("rows/1", "7", 5, 6), final(1, `"rows/1": 101`))
	if found := judged(t, 50*time.Millisecond, lines...); len(found.Undecided) != 1 || len(found.Broken) > 0 {
		t.Error(found)
	}
}

func TestWhatCannotBeJudgedIsAnError(t *testing.T) {
	for _, text := range []string{first, strings.Replace(mode, "sync", "async", 1) + "\n" + rewind + "\n" + final(0, ""), "no JSON"} {
		if _, err := read(strings.NewReader(strings.ReplaceAll(text, "\n\t", " "))); err == nil {
			t.Error(text)
		}
	}
}
