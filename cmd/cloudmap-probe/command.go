package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/awsprobe"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
)

// flags is the command line.
type flags struct {
	options awsprobe.Options
	sweep   bool
	yes     bool
	output  string
}

func newCommand() *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use:           "cloudmap-probe",
		Short:         "Find out how AWS Cloud Map behaves in an account and Region",
		Version:       config.Version,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.run(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
	set, o := cmd.Flags(), &f.options
	set.StringVar(&o.Region, "region", "", "AWS Region (default: that of AWS_REGION and AWS's files)")
	set.StringVar(&o.Role.ARN, "role", "", "`ARN` of a role with the policies of a cluster, for probe 9")
	set.StringVar(&o.Role.ExternalID, "external-id", "", "external ID that the trust policy of the role requires")
	set.StringVar(&o.VPC, "vpc", "", "`ID` of a VPC, for probe 10, which makes a hosted zone for some minutes")
	set.StringVar(&o.Share, "share", "", "`ARN` of a namespace that another account shares, for probe 11")
	set.BoolVar(&o.Rates, "rates", false, "run probe 7 too, which uses up the account's quotas of requests for half a minute")
	set.BoolVar(&f.sweep, "sweep", false, "remove what an earlier run has left, and nothing else")
	set.BoolVar(&f.yes, "yes", false, "begin without asking")
	set.StringVar(&f.output, "output", ".", "`DIR` for report.md and behaviors.json")
	set.StringVar(&o.Endpoint, "endpoint", "", "`URL` of cloudmap-local, to try the probes without AWS")
	return cmd
}

// run probes, or removes what an earlier run has left.
func (f *flags) run(ctx context.Context, in io.Reader, out io.Writer) error {
	f.options.Progress = out
	if f.sweep {
		return awsprobe.Sweep(ctx, f.options)
	}
	if err := os.MkdirAll(f.output, 0o755); err != nil { // before it makes anything in AWS
		return err
	}
	if !f.yes {
		f.options.Confirm = func(text string) bool { return ask(in, out, text) }
	}
	report, err := awsprobe.Run(ctx, f.options)
	if len(report.Rows()) == 0 {
		return err
	}
	return errors.Join(err, f.write(report, out))
}

// ask reports whether the user wants to begin. The end of the input is no.
func ask(in io.Reader, out io.Writer, text string) bool {
	_, _ = fmt.Fprintf(out, "%s\nBegin? [y/N] ", text)
	line, _ := bufio.NewReader(in).ReadString('\n')
	return strings.EqualFold(strings.TrimSpace(line), "y")
}

// write writes the files of the report.
func (f *flags) write(report *awsprobe.Report, out io.Writer) error {
	for _, file := range []struct {
		name    string
		content []byte
	}{{"report.md", []byte(report.Markdown())}, {"behaviors.json", report.Behaviors()}} {
		path := filepath.Join(f.output, file.name)
		if err := os.WriteFile(path, file.content, 0o644); err != nil {
			return err
		}
		_, _ = fmt.Fprintln(out, "wrote", path)
	}
	return nil
}
