// Command linearizability judges histories of real processes by Porcupine, a checker from elsewhere.
//
//	linearizability [-timeout 60s] [-pictures FOLDER] HISTORY…
//
// tests/crash/soak/checker.py says what a history is. Each resource is a register of its own, with a fence. The command
// prints a JSON document for each history. It exits with 1 if one is not linearizable, and with 3 if the time was over
// before one was decided. That is no success.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

type verdict struct {
	File       string   `json:"file"`
	Operations int      `json:"operations"`
	Open       int      `json:"open"`
	Registers  int      `json:"registers"`
	Broken     []string `json:"broken"`
	Undecided  []string `json:"undecided"`
	Pictures   []string `json:"pictures"`
}

func main() {
	timeout := flag.Duration("timeout", time.Minute, "for each register")
	pictures := flag.String("pictures", "", "the folder for a picture of each register that is not linearizable")
	flag.Parse()
	exit := 0
	for _, name := range flag.Args() {
		found, err := judge(name, *timeout, *pictures)
		if err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
			os.Exit(2)
		}
		_ = json.NewEncoder(os.Stdout).Encode(found)
		if len(found.Broken) > 0 {
			exit = 1
		} else if len(found.Undecided) > 0 && exit == 0 {
			exit = 3
		}
	}
	os.Exit(exit)
}

func judge(name string, timeout time.Duration, pictures string) (verdict, error) {
	file, err := os.Open(name)
	if err != nil {
		return verdict{}, err
	}
	defer file.Close()
	h, err := read(file)
	if err != nil {
		return verdict{}, err
	}
	found := verdict{name, h.operations, h.open, len(h.registers) + len(h.locks), []string{}, []string{}, []string{}}
	for _, kind := range []struct {
		model porcupine.Model
		all   map[string][]porcupine.Operation
	}{{registers, h.registers}, {leases, h.locks}} {
		for _, register := range slices.Sorted(maps.Keys(kind.all)) {
			switch porcupine.CheckOperationsTimeout(kind.model, kind.all[register], timeout) {
			case porcupine.Ok:
				continue
			case porcupine.Unknown:
				found.Undecided = append(found.Undecided, register)
				continue
			}
			found.Broken = append(found.Broken, register)
			if pictures != "" {
				picture := filepath.Join(pictures, filepath.Base(name)+" "+unsafe.ReplaceAllString(register, "-")+".html")
				_, info := porcupine.CheckOperationsVerbose(kind.model, kind.all[register], timeout)
				if err := porcupine.VisualizePath(kind.model, info, picture); err != nil {
					return found, err
				}
				found.Pictures = append(found.Pictures, picture)
			}
		}
	}
	return found, nil
}

var unsafe = regexp.MustCompile(`[^\w, ]`)
