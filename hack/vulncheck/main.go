// Command vulncheck runs govulncheck, which is pinned in hack/tools/go.mod, on the packages of this
// module. It fails if they call a vulnerable function of a module. Vulnerabilities of the standard
// library are printed: a newer Go release mends them, and the Dockerfile has the one of releases.
//
// The environment variable VULNDB is the URL of a vulnerability database, or the path of one: a
// directory, or a tar.gz of it. Without it the database of the Go project is used, and without a
// network the check is skipped, with one line that reports it.
package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const (
	defaultDatabase = "https://vuln.go.dev"
	// reachTimeout is the time that the default database may take to answer.
	reachTimeout = 5 * time.Second
	// stdlib is the name of the standard library in findings.
	stdlib = "stdlib"
)

// accepted are findings that do not concern this module, with the reason.
var accepted = map[string]string{}

func main() {
	if err := run(os.Getenv("VULNDB"), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(database string, out io.Writer) error {
	if database == "" {
		if !isReachable(defaultDatabase) {
			fmt.Fprintf(out, "vulncheck: skipped, because %s cannot be reached; set VULNDB to a copy of the database\n", defaultDatabase)
			return nil
		}
		database = defaultDatabase
	}
	url, remove, err := open(database)
	if err != nil {
		return fmt.Errorf("opening the vulnerability database: %w", err)
	}
	defer remove()
	cmd := exec.Command("go", "tool", "-modfile=hack/tools/go.mod", "govulncheck", "-format", "json", "-db", url, "./...")
	var output, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &problems
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("running govulncheck: %w\n%s", err, problems.String())
	}
	found, modified, err := parse(&output)
	if err != nil {
		return fmt.Errorf("reading the output of govulncheck: %w", err)
	}
	return report(found, modified, out)
}

// isReachable reports whether a database answers.
func isReachable(database string) bool {
	client := http.Client{Timeout: reachTimeout}
	response, err := client.Get(database + "/index/db.json")
	if err != nil {
		return false
	}
	_ = response.Body.Close()
	return response.StatusCode == http.StatusOK
}

// open returns the URL of a database, and a function that removes the unpacked files.
func open(database string) (url string, remove func(), err error) {
	if strings.Contains(database, "://") {
		return database, func() {}, nil
	}
	dir, remove := database, func() {}
	info, err := os.Stat(database)
	if err != nil {
		return "", nil, err
	}
	if !info.IsDir() {
		if dir, err = os.MkdirTemp("", "vulndb-"); err != nil {
			return "", nil, err
		}
		unpacked := dir
		remove = func() { _ = os.RemoveAll(unpacked) }
		if err := unpack(database, dir); err != nil {
			remove()
			return "", nil, err
		}
	}
	index, err := filepath.Glob(filepath.Join(dir, "index", "db.json"))
	if deeper, _ := filepath.Glob(filepath.Join(dir, "*", "index", "db.json")); len(index) == 0 {
		index = deeper
	}
	if err != nil || len(index) != 1 {
		remove()
		return "", nil, fmt.Errorf("%s has no index/db.json", database)
	}
	path, err := filepath.Abs(filepath.Dir(filepath.Dir(index[0])))
	return "file://" + path, remove, err
}

// unpack unpacks the regular files of a tar.gz into dir.
func unpack(file, dir string) error {
	in, err := os.Open(file)
	if err != nil {
		return err
	}
	defer in.Close()
	plain, err := gzip.NewReader(in)
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(dir) // refuses names that leave dir
	if err != nil {
		return err
	}
	defer root.Close()
	for archive := tar.NewReader(plain); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if header.Typeflag != tar.TypeReg {
			continue
		}
		if err := root.MkdirAll(filepath.Dir(header.Name), 0o755); err != nil {
			return err
		}
		content, err := io.ReadAll(archive)
		if err != nil {
			return err
		}
		if err := root.WriteFile(header.Name, content, 0o644); err != nil {
			return err
		}
	}
}

// A finding is a vulnerability that the code calls.
type finding struct {
	ID, Module, Found, Fixed, Symbol string
}

// parse reads the messages of govulncheck, and returns the vulnerabilities that are called, by ID
// and module, and the time of the database.
func parse(output io.Reader) (map[string]finding, string, error) {
	found, modified := map[string]finding{}, ""
	for decoder := json.NewDecoder(output); ; {
		var message struct {
			Config *struct {
				Modified string `json:"db_last_modified"`
			} `json:"config"`
			Finding *struct {
				OSV   string `json:"osv"`
				Fixed string `json:"fixed_version"`
				Trace []struct {
					Module   string `json:"module"`
					Version  string `json:"version"`
					Package  string `json:"package"`
					Function string `json:"function"`
				} `json:"trace"`
			} `json:"finding"`
		}
		err := decoder.Decode(&message)
		switch {
		case errors.Is(err, io.EOF):
			return found, modified, nil
		case err != nil:
			return nil, "", err
		case message.Config != nil:
			modified = message.Config.Modified
		case message.Finding != nil && len(message.Finding.Trace) > 0 && message.Finding.Trace[0].Function != "":
			at := message.Finding.Trace[0]
			found[message.Finding.OSV+" "+at.Module] = finding{
				ID: message.Finding.OSV, Module: at.Module, Found: at.Version, Fixed: message.Finding.Fixed, Symbol: at.Package + "." + at.Function,
			}
		}
	}
}

// report prints the findings, and returns an error if one of a module is not accepted.
func report(found map[string]finding, modified string, out io.Writer) error {
	var refused []string
	for _, key := range slices.Sorted(maps.Keys(found)) {
		f := found[key]
		line := fmt.Sprintf("https://pkg.go.dev/vuln/%s: %s %s is called (%s); fixed in %s", f.ID, f.Module, f.Found, f.Symbol, f.Fixed)
		switch reason := accepted[f.ID]; {
		case f.Module == stdlib:
			fmt.Fprintln(out, "vulncheck: build with a newer Go:", line)
		case reason != "":
			fmt.Fprintf(out, "vulncheck: accepted, %s: %s\n", reason, line)
		default:
			refused = append(refused, line)
		}
	}
	if len(refused) > 0 {
		return fmt.Errorf("vulnerable code is called:\n%s", strings.Join(refused, "\n"))
	}
	fmt.Fprintf(out, "vulncheck: no vulnerable code of a module is called (database of %s)\n", modified)
	return nil
}
