package install

import (
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/deploy"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/crds"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/session"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/names"
)

// imageName is the name of the image in deploy/manager.
const imageName = names.Image

// An installation has the differences from deploy/base.
type installation struct {
	namespace string
	// image replaces the image of the release unless it is "".
	image    string
	replicas int
	// annotations of the ServiceAccount, which give it an IAM role (IRSA).
	annotations map[string]string
	// secret is the name of a Secret with environment variables such as AWS_ACCESS_KEY_ID, "" for
	// none.
	secret string
	// files have the content of the mounted files, none for those that are not used.
	files map[mountedFile]string
	// editRole adds the ClusterRole with which users with edit in a namespace export its Services.
	editRole bool
	// args are additional flags of the controller.
	args []string
}

// A mountedFile is a file of the controller that a ConfigMap has.
type mountedFile struct {
	// name is that of the controller's flag for its path, and with the product the ConfigMap's; key
	// is the one in there.
	name, key string
}

// The mounted files, which the chart has under the same names.
var (
	policyFile   = mountedFile{"import-policy", "policy.yaml"}
	servicesFile = mountedFile{"cloud-map-services", "services.yaml"}
	mountedFiles = []mountedFile{policyFile, servicesFile}
)

// configMap returns the name of the ConfigMap.
func (f mountedFile) configMap() string { return names.Product + "-" + f.name }

// folder returns where the ConfigMap is mounted.
func (f mountedFile) folder() string { return "/etc/cloud-map-mcs/" + f.name }

// renderManifests returns the objects of an installation in the order in which they can be created.
// They are those of `kubectl apply -k deploy/crds` and `kubectl apply -k deploy/base`, with an
// overlay for the differences.
func renderManifests(in installation) ([]*unstructured.Unstructured, error) {
	files, err := in.overlayFiles()
	if err != nil {
		return nil, err
	}
	options := krusty.MakeDefaultOptions()
	options.Reorder = krusty.ReorderOptionLegacy // namespaces and CRDs come first
	rendered, err := krusty.MakeKustomizer(options).Run(files, "/deploy/overlay")
	if err != nil {
		return nil, fmt.Errorf("rendering the manifests: %w", err)
	}
	var objects []*unstructured.Unstructured
	for _, r := range rendered.Resources() {
		text, err := r.MarshalJSON()
		if err != nil {
			return nil, fmt.Errorf("rendering %s: %w", r.CurId(), err)
		}
		object := &unstructured.Unstructured{}
		if err := object.UnmarshalJSON(text); err != nil {
			return nil, fmt.Errorf("rendering %s: %w", r.CurId(), err)
		}
		if strings.HasPrefix(object.GetKind(), "ValidatingAdmissionPolicy") {
			// kustomize does not know that they have none
			unstructured.RemoveNestedField(object.Object, "metadata", "namespace")
		}
		objects = append(objects, object)
	}
	return objects, nil
}

// overlayFiles returns the files of deploy, with the overlay of the installation.
func (in installation) overlayFiles() (filesys.FileSystem, error) {
	files := filesys.MakeFsInMemory()
	err := fs.WalkDir(deploy.Files, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := deploy.Files.ReadFile(name)
		if err != nil {
			return err
		}
		return files.WriteFile(path.Join("/deploy", name), text)
	})
	if err != nil {
		return nil, fmt.Errorf("reading the manifests: %w", err)
	}
	overlay, err := yaml.Marshal(in.overlay())
	if err != nil {
		return nil, fmt.Errorf("writing the overlay: %w", err)
	}
	if err := files.WriteFile("/deploy/overlay/kustomization.yaml", overlay); err != nil {
		return nil, fmt.Errorf("writing the overlay: %w", err)
	}
	for f, text := range in.files {
		if err := files.WriteFile("/deploy/overlay/"+f.key, []byte(text)); err != nil {
			return nil, fmt.Errorf("writing the content of ConfigMap %s: %w", f.configMap(), err)
		}
	}
	return files, nil
}

// overlay returns the kustomization on top of deploy/crds and deploy/base.
func (in installation) overlay() types.Kustomization {
	const container = "/spec/template/spec/containers/0"
	k := types.Kustomization{
		TypeMeta:  types.TypeMeta{APIVersion: types.KustomizationVersion, Kind: types.KustomizationKind},
		Namespace: in.namespace,
		Resources: []string{"../crds", "../base"}, Components: in.components(),
		Replicas: []types.Replica{{Name: session.ManagerName, Count: int64(in.replicas)}},
	}
	switch {
	case in.image != "":
		k.Images = []types.Image{splitImage(in.image)}
	case config.ImageDigest != "":
		k.Images = []types.Image{{Name: imageName, Digest: config.ImageDigest}}
	}
	var changes []map[string]any
	for _, f := range mountedFiles {
		if _, ok := in.files[f]; !ok {
			continue
		}
		k.ConfigMapGenerator = append(k.ConfigMapGenerator, types.ConfigMapArgs{GeneratorArgs: types.GeneratorArgs{
			Name: f.configMap(), KvPairSources: types.KvPairSources{FileSources: []string{f.key}}, Options: &types.GeneratorOptions{DisableNameSuffixHash: true},
		}})
		k.Patches = append(k.Patches, f.mount())
		changes = append(changes, map[string]any{"op": "add", "path": container + "/args/-", "value": "--" + f.name + "=" + f.folder() + "/" + f.key})
	}
	for _, arg := range in.args {
		changes = append(changes, map[string]any{"op": "add", "path": container + "/args/-", "value": arg})
	}
	if in.secret != "" {
		changes = append(changes, map[string]any{
			"op": "add", "path": container + "/envFrom", "value": []any{map[string]any{"secretRef": map[string]any{"name": in.secret}}},
		})
	}
	k.Patches = appendPatch(k.Patches, "Deployment", session.ManagerName, changes)
	var ports []map[string]any
	for _, port := range egressPorts(in.args) {
		ports = append(ports, map[string]any{"op": "add", "path": "/spec/egress/1/ports/-", "value": map[string]any{"protocol": "TCP", "port": port}})
	}
	k.Patches = appendPatch(k.Patches, "NetworkPolicy", session.ManagerName, ports)
	if options, err := config.Parse(in.args); err == nil && options.Scope.AutoExport != "" {
		k.Patches = appendPatch(k.Patches, "ValidatingAdmissionPolicy", names.Product+"-own-objects", []map[string]any{
			{"op": "test", "path": "/spec/variables/0/name", "value": "autoExport"}, {"op": "replace", "path": "/spec/variables/0/expression", "value": "true"},
		})
	}
	// kustomize does not change a namespace that is set
	for _, kind := range []string{"RoleBinding", "ClusterRoleBinding"} {
		k.Patches = appendPatch(k.Patches, kind, "", []map[string]any{{"op": "replace", "path": "/subjects/0/namespace", "value": in.namespace}})
	}
	if len(in.annotations) > 0 {
		k.Patches = appendPatch(k.Patches, "ServiceAccount", session.ManagerName, []map[string]any{{"op": "add", "path": "/metadata/annotations", "value": in.annotations}})
	}
	return k
}

// components returns the folders with options of deploy/base that are in use.
func (in installation) components() []string {
	if in.editRole {
		return []string{"../components/edit-role"}
	}
	return nil
}

// endpointPort matches the port of a URL in a flag.
var endpointPort = regexp.MustCompile(`://[^/,;]*:([0-9]{1,5})(?:[/,;]|$)`)

// egressPorts returns the ports of the registries' endpoints in flags that the NetworkPolicy of
// deploy/base does not allow.
func egressPorts(args []string) []int {
	var ports []int
	for _, arg := range args {
		for _, match := range endpointPort.FindAllStringSubmatch(arg, -1) {
			port, _ := strconv.Atoi(match[1]) // the pattern has checked it
			if !slices.Contains([]int{443, 6443}, port) && !slices.Contains(ports, port) {
				ports = append(ports, port)
			}
		}
	}
	return ports
}

// mount returns the patch that mounts the ConfigMap.
func (f mountedFile) mount() types.Patch {
	text, err := yaml.Marshal(map[string]any{
		"apiVersion": "apps/v1", "kind": "Deployment", "metadata": map[string]any{"name": session.ManagerName},
		"spec": map[string]any{"template": map[string]any{"spec": map[string]any{
			"containers": []any{map[string]any{"name": "manager", "volumeMounts": []any{map[string]any{"name": f.name, "mountPath": f.folder(), "readOnly": true}}}},
			"volumes":    []any{map[string]any{"name": f.name, "configMap": map[string]any{"name": f.configMap()}}},
		}}},
	})
	if err != nil {
		panic(err) // strings and maps of strings can be marshalled
	}
	return types.Patch{Patch: string(text)}
}

// appendPatch appends a patch of the object of that kind and name, or of all of that kind if name
// is "".
func appendPatch(patches []types.Patch, kind, name string, changes []map[string]any) []types.Patch {
	if len(changes) == 0 {
		return patches
	}
	text, err := yaml.Marshal(changes)
	if err != nil {
		panic(err) // strings and maps of strings can be marshalled
	}
	target := &types.Selector{}
	target.Kind, target.Name = kind, name
	return append(patches, types.Patch{Patch: string(text), Target: target})
}

// splitImage splits an image reference into repository, tag and digest.
func splitImage(ref string) types.Image {
	image := types.Image{Name: imageName}
	ref, image.Digest, _ = strings.Cut(ref, "@")
	if i := strings.LastIndex(ref, ":"); i > strings.LastIndex(ref, "/") {
		ref, image.NewTag = ref[:i], ref[i+1:]
	}
	image.NewName = ref
	return image
}

// isCRD reports whether an object is a CustomResourceDefinition.
func isCRD(o *unstructured.Unstructured) bool { return o.GetKind() == "CustomResourceDefinition" }

// splitNewerCRDs splits the objects into those to apply and the CRDs of which the cluster has a
// newer release: applying an older schema would drop fields.
func splitNewerCRDs(objects []*unstructured.Unstructured, installed crds.Installed) (apply, kept []*unstructured.Unstructured) {
	for _, o := range objects {
		have, exists := installed[o.GetName()]
		if isCRD(o) && exists && crds.Compare(have, crds.ReleaseOf(o.GetLabels())) > 0 {
			kept = append(kept, o)
		} else {
			apply = append(apply, o)
		}
	}
	return apply, kept
}

// reversed returns the objects in the order in which they are deleted.
func reversed(objects []*unstructured.Unstructured) []*unstructured.Unstructured {
	out := slices.Clone(objects)
	slices.Reverse(out)
	return out
}
