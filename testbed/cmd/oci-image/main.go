// Oci-image builds a multi-architecture OCI image archive from static binaries, without a container
// engine:
//
//	oci-image --out app.tar --ref example.org/app:1.0 --entrypoint /app --user 65532:65532 \
//	  --platform linux/amd64=bin/app-amd64 --platform linux/arm64=bin/app-arm64 \
//	  --file /etc/ssl/certs/ca-certificates.crt=/etc/ssl/certs/ca-certificates.crt
package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/testbed/oci"
)

type options struct {
	out        string
	image      oci.Image
	platforms  []string
	extraFiles []string
}

func main() {
	if err := newCommand().Execute(); err != nil {
		os.Exit(1)
	}
}

func newCommand() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:           "oci-image --out FILE --ref NAME:TAG --entrypoint PATH --platform OS/ARCH=BINARY",
		Short:         "Build an OCI image archive from static binaries",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: false,
		RunE:          func(*cobra.Command, []string) error { return o.run() },
	}
	flags := cmd.Flags()
	flags.StringVar(&o.out, "out", "", "archive to write")
	flags.StringArrayVar(&o.image.Refs, "ref", nil, "name of the image, NAME:TAG; may be repeated")
	flags.StringArrayVar(&o.image.Entrypoint, "entrypoint", nil, "path of the binary in the image; repeated: its arguments")
	flags.StringVar(&o.image.User, "user", "65532:65532", "numeric UID:GID the image runs as")
	flags.StringToStringVar(&o.image.Annotations, "annotation", nil, "KEY=VALUE, an annotation of the image; may be repeated")
	flags.StringArrayVar(&o.image.Env, "env", nil, "KEY=VALUE set in the image; may be repeated")
	flags.StringArrayVar(&o.platforms, "platform", nil, "OS/ARCH=BINARY, such as linux/arm64=bin/app-arm64; may be repeated")
	flags.StringArrayVar(&o.extraFiles, "file", nil, "SOURCE=PATH, a file for every platform; may be repeated")
	for _, required := range []string{"out", "ref", "entrypoint", "platform"} {
		if err := cmd.MarkFlagRequired(required); err != nil {
			panic(err) // only possible when the flag's name above is wrong
		}
	}
	return cmd
}

func (o *options) run() error {
	var err error
	if o.image.Platforms, err = platforms(o.platforms, o.image.Entrypoint[0], o.extraFiles); err != nil {
		return err
	}
	return oci.WriteFile(o.out, o.image)
}

// platforms puts each platform's binary at the path of the entrypoint, and the extra files beside
// it.
func platforms(binaries []string, entrypoint string, extra []string) ([]oci.Platform, error) {
	var files []oci.File
	for _, f := range extra {
		source, path, ok := strings.Cut(f, "=")
		if !ok {
			return nil, fmt.Errorf("--file %s: expected SOURCE=PATH", f)
		}
		files = append(files, oci.File{Source: source, Path: path})
	}
	var out []oci.Platform
	for _, b := range binaries {
		name, binary, ok := strings.Cut(b, "=")
		if !ok {
			return nil, fmt.Errorf("--platform %s: expected OS/ARCH=BINARY", b)
		}
		if binary == "" {
			return nil, errors.New("--platform " + b + ": the binary's path is missing")
		}
		out = append(out, oci.Platform{Name: name, Files: append([]oci.File{{Source: binary, Path: entrypoint}}, files...)})
	}
	return out, nil
}
