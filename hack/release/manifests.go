package main

import (
	"fmt"
	"os"
	"path/filepath"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// renderManifests renders a kustomize folder of the repository with the controller's image by
// digest, in the order in which the objects can be created. It writes an overlay below work.
func renderManifests(work, folder string, controller image) ([]byte, error) {
	dir := filepath.Join(work, "kustomize", filepath.Base(folder))
	base, err := relativePath(dir, folder)
	if err != nil {
		return nil, err
	}
	overlay, err := yaml.Marshal(types.Kustomization{
		TypeMeta:  types.TypeMeta{APIVersion: types.KustomizationVersion, Kind: types.KustomizationKind},
		Resources: []string{base},
		Images:    []types.Image{{Name: repository + "/" + controller.name, Digest: controller.digest}},
	})
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), overlay, 0o600); err != nil {
		return nil, err
	}
	options := krusty.MakeDefaultOptions()
	options.Reorder = krusty.ReorderOptionLegacy // namespaces and CRDs come first
	rendered, err := krusty.MakeKustomizer(options).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		return nil, fmt.Errorf("rendering %s: %w", folder, err)
	}
	return rendered.AsYaml()
}

func relativePath(from, to string) (string, error) {
	from, err := filepath.Abs(from)
	if err != nil {
		return "", err
	}
	if to, err = filepath.Abs(to); err != nil {
		return "", err
	}
	return filepath.Rel(from, to)
}
