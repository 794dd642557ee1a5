// Package gather has the command gather. It writes what a report of a problem needs into an
// archive, without secrets.
package gather

import (
	"archive/tar"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/session"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/redact"
)

// indexFile lists the files of the archive, and what could not be read.
const indexFile = "INDEX.txt"

// An entry is a file of the archive, or the reason why there is none.
type entry struct {
	file, text, problem string
}

// Command returns the command gather.
func Command(s *session.Session) *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "gather",
		Short: "Write the state of the clusterset into an archive for a report of a problem",
		Long: "Writes the objects, logs, status and metrics of the controllers of all contexts into one tar.gz. It reads no Secret and no\n" +
			"ConfigMap, and removes keys, tokens and passwords from all texts; names and IPs stay: look through it before you publish it.\n" +
			"What you do not have permission for is missing, and " + indexFile + " in the archive has the reasons. Changes nothing.",
		Example: "  kubectl mcs gather --context cls1,cls2\n  kubectl mcs gather --file report.tar.gz",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			clusters, err := s.Clusters()
			if err != nil {
				return err
			}
			now := clusters[0].Now().UTC()
			return write(cmd.Context(), s, clusters, cmp.Or(file, "mcs-gather-"+now.Format("20060102T150405Z")+".tar.gz"), now)
		},
	}
	cmd.Flags().StringVar(&file, "file", "", "name of the archive (default: mcs-gather-TIME.tar.gz)")
	return cmd
}

// write gathers from all clusters and writes the archive. Only the user can read it.
func write(ctx context.Context, s *session.Session, clusters []*session.Cluster, file string, now time.Time) error {
	out, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("creating the archive: %w", err)
	}
	entries := []entry{{file: "plugin-version.txt", text: s.Version + "\n"}}
	seen := map[string]int{}
	for i, gathered := range session.ForEachCluster(clusters, func(k *session.Cluster) []entry { return gatherCluster(ctx, s, k) }) {
		folder := folderOf(clusters[i].Context)
		if seen[folder]++; seen[folder] > 1 {
			folder = fmt.Sprintf("%s-%d", folder, i)
		}
		for _, e := range gathered {
			e.file = path.Join(folder, e.file)
			entries = append(entries, e)
		}
	}
	problems := addIndex(&entries)
	err = errors.Join(writeArchive(out, strings.TrimSuffix(path.Base(file), ".tar.gz"), entries, now), out.Close())
	if err != nil {
		return fmt.Errorf("writing the archive %s: %w", file, err)
	}
	s.Printf("Wrote %s with %d files. Secrets are removed; names and IPs are not.", file, len(entries)-problems)
	if problems > 0 {
		s.Printf("%d parts could not be read: %s in the archive has the reasons.", problems, indexFile)
	}
	return nil
}

// addIndex removes the secrets of all entries, adds the index in front, and returns the number of
// parts that could not be read.
func addIndex(entries *[]entry) (problems int) {
	var read, missing strings.Builder
	for i := range *entries {
		e := &(*entries)[i]
		e.text, e.problem = redact.Secrets(e.text), redact.Secrets(e.problem)
		if e.problem == "" {
			fmt.Fprintf(&read, "%s: %d bytes\n", e.file, len(e.text))
			continue
		}
		problems++
		fmt.Fprintf(&missing, "%s: %s\n", e.file, session.Printable(e.problem))
	}
	text := "Files:\n" + read.String()
	if problems > 0 {
		text = "Could not be read:\n" + missing.String() + "\n" + text
	}
	*entries = append([]entry{{file: indexFile, text: text}}, *entries...)
	return problems
}

// writeArchive writes the entries that could be read, below a folder.
func writeArchive(out io.Writer, folder string, entries []entry, now time.Time) error {
	compressed := gzip.NewWriter(out)
	archive := tar.NewWriter(compressed)
	for _, e := range entries {
		if e.problem != "" {
			continue
		}
		header := &tar.Header{Name: path.Join(folder, e.file), Mode: 0o600, Size: int64(len(e.text)), ModTime: now, Typeflag: tar.TypeReg}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		if _, err := io.WriteString(archive, e.text); err != nil {
			return err
		}
	}
	return errors.Join(archive.Close(), compressed.Close())
}

// notInFile matches the characters of contexts that some file systems do not have in names.
var notInFile = regexp.MustCompile(`[^A-Za-z0-9._-]+`)

// folderOf returns the folder of a context. Contexts of EKS are ARNs.
func folderOf(context string) string {
	return cmp.Or(strings.Trim(notInFile.ReplaceAllString(context, "_"), "."), "context")
}
