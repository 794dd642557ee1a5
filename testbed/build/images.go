package build

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/testbed/cluster"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/testbed/oci"
)

// Names of the images every node has. A tag other than latest means that Kubernetes does not try to
// pull them.
const (
	pauseImage   = "registry.k8s.io/pause:3.10.2"
	corednsImage = "registry.k8s.io/coredns/coredns:"
	clientImage  = "testbed/client:1"
	helloImage   = "testbed/nginx-hello:1"
)

// The same two under the names of the public images that they replace, so that a user's manifests
// run unchanged.
const (
	netshootImage   = "docker.io/nicolaka/netshoot:v0.15"
	nginxDemosImage = "docker.io/nginxdemos/hello:plain-text"
)

// nonRoot is the user of images that need no root: the number is that of distroless images.
const nonRoot = "65532:65532"

// Result holds the paths of the built files.
type Result struct {
	NodeProgram string // the first process of every node
	Kubernetes  string // directory of kubectl
	Runtime     string // directory of ctr
	Clusters    map[cluster.Versions]ClusterResult
}

// ClusterResult holds what is different in clusters of other versions.
type ClusterResult struct {
	Software     cluster.Software
	CoreDNSImage string
}

// assemble builds the images from the programs and returns all paths.
func (b *Builder) assemble(dirs map[string]string, pins map[cluster.Versions]clusterPins) (Result, error) {
	r := Result{
		NodeProgram: filepath.Join(dirs["tools"], "testbed-node"),
		Kubernetes:  dirs["kubernetes"],
		Runtime:     dirs["containerd"],
		Clusters:    map[cluster.Versions]ClusterResult{},
	}
	for versions, p := range pins {
		one := ClusterResult{
			CoreDNSImage: corednsImage + p.coredns.version,
			Software: cluster.Software{
				Kubernetes: dirs[kubernetesProgram(p.kubernetes).name],
				Runtime:    r.Runtime,
				CoreDNS:    filepath.Join(dirs[corednsProgram(p.coredns).name], "coredns"),
				PauseImage: pauseImage,
			},
		}
		var err error
		if one.Software.Archives, err = b.images(dirs["tools"], one); err != nil {
			return Result{}, err
		}
		r.Clusters[versions] = one
	}
	return r, nil
}

// images builds the images of a cluster that are not in the cache and returns the paths of their
// archives.
func (b *Builder) images(tools string, r ClusterResult) ([]string, error) {
	client, err := clientFiles()
	if err != nil {
		return nil, err
	}
	var archives []string
	one := func(path, source string) []oci.File { return []oci.File{{Path: path, Source: source}} }
	for _, i := range []struct {
		name       string
		refs       []string
		entrypoint []string
		files      []oci.File
	}{
		{"pause", []string{pauseImage}, []string{"/pause"}, one("/pause", filepath.Join(tools, "pause"))},
		{"coredns", []string{r.CoreDNSImage}, []string{"/coredns"}, one("/coredns", r.Software.CoreDNS)},
		{"nginx-hello", []string{helloImage, nginxDemosImage}, []string{"/hello"}, one("/hello", filepath.Join(tools, "hello"))},
		{"client", []string{clientImage, netshootImage}, clientCommand, client},
	} {
		platform := oci.Platform{Name: "linux/" + runtime.GOARCH, Files: i.files}
		img := oci.Image{Refs: i.refs, Entrypoint: i.entrypoint, User: nonRoot, Platforms: []oci.Platform{platform}}
		archive, err := b.ensureImage(i.name, img)
		if err != nil {
			return nil, fmt.Errorf("building image %s: %w", i.refs[0], err)
		}
		archives = append(archives, archive)
	}
	return archives, nil
}

// ensureImage writes the archive of an image unless the cache has it.
func (b *Builder) ensureImage(name string, img oci.Image) (string, error) {
	key, err := imageKey(img)
	if err != nil {
		return "", err
	}
	archive := filepath.Join(b.Cache, "images", name+"-"+key+".tar")
	if _, err := os.Stat(archive); err == nil {
		return archive, nil
	}
	if err := os.MkdirAll(filepath.Dir(archive), 0o755); err != nil {
		return "", err
	}
	b.logf("building image %s", img.Refs[0])
	return archive, oci.WriteFile(archive, img)
}

// imageKey returns a hash of the inputs of an image. Files are taken to be the same while their
// size and time are: reading them all would cost more than the rest of a warm start.
func imageKey(img oci.Image) (string, error) {
	h := sha256.New()
	fmt.Fprintf(h, "%q %q %q %q\n", img.Refs, img.Entrypoint, img.User, img.Env)
	for _, p := range img.Platforms {
		fmt.Fprintf(h, "%s\n", p.Name)
		for _, f := range p.Files {
			fmt.Fprintf(h, "%+v\n", f)
			if f.Source == "" {
				continue
			}
			info, err := os.Stat(f.Source)
			if err != nil {
				return "", fmt.Errorf("looking at %s: %w", f.Source, err)
			}
			fmt.Fprintf(h, "%d %d\n", info.Size(), info.ModTime().UnixNano())
		}
	}
	return hex.EncodeToString(h.Sum(nil))[:12], nil
}

// clientCommand waits for SIGTERM. The shell is the first process of its container and would ignore
// the signal without the trap.
var clientCommand = []string{"/bin/sh", "-c", "trap 'exit 0' TERM INT; tail -f /dev/null & wait"}

// applets are the commands of busybox the client image offers. Its own sh, nc and nslookup are not
// among them: busybox's sh would prefer them to the real ones.
const applets = "ash awk base64 basename cat chmod cp cut date dd dirname echo env expr false find grep head hostname id ip " +
	"ls mkdir mktemp mv nproc printf ps pwd readlink rm sed seq sleep sort stat tail tee time timeout touch tr true " +
	"uname uniq wc wget which xargs yes"

// clientFiles returns the file system of the client image: a shell and the tools people debug
// networks with, from this machine's packages, with the libraries they need.
func clientFiles() ([]oci.File, error) {
	files := []oci.File{
		{Path: "/bin/sh", Link: "dash"},
		{Path: "/etc/passwd", Content: "root:x:0:0:root:/:/bin/sh\nclient:x:65532:65532:client:/tmp:/bin/sh\n"},
		{Path: "/etc/group", Content: "root:x:0:\nclient:x:65532:\n"},
		{Path: "/etc/nsswitch.conf", Content: "hosts: files dns\n"},
		{Path: "/tmp/.keep"},
	}
	for applet := range strings.FieldsSeq(applets) {
		files = append(files, oci.File{Path: "/bin/" + applet, Link: "busybox"})
	}
	libraries := map[string]bool{}
	for path, command := range map[string]string{
		"/bin/busybox": "busybox", "/bin/dash": "dash", "/bin/nc": "nc.openbsd",
		"/bin/curl": "curl", "/bin/dig": "dig", "/bin/nslookup": "nslookup",
	} {
		source, err := lookCommand(command)
		if err != nil {
			return nil, err
		}
		files = append(files, oci.File{Path: path, Source: source})
		needed, err := sharedLibraries(source)
		if err != nil {
			return nil, err
		}
		for _, l := range needed {
			libraries[l] = true
		}
	}
	for l := range libraries {
		files = append(files, oci.File{Path: l, Source: l})
	}
	// maps have no order
	slices.SortFunc(files, func(a, b oci.File) int { return strings.Compare(a.Path, b.Path) })
	return files, nil
}

// sharedLibraries lists the libraries and the dynamic linker of a binary; none for a static one.
func sharedLibraries(binary string) ([]string, error) {
	output, err := exec.Command("ldd", binary).CombinedOutput()
	if strings.Contains(string(output), "not a dynamic executable") {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing the libraries of %s: %w", binary, err)
	}
	return parseLDD(string(output)), nil
}

func parseLDD(output string) []string {
	var out []string
	for field := range strings.FieldsSeq(output) {
		if strings.HasPrefix(field, "/") {
			out = append(out, field)
		}
	}
	return out
}
