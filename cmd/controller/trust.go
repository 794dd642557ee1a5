package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/kubestore"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

// keys has the signing key of this cluster and the keys of the others, which all registries of this
// controller share. Both are loaded when the first registry needs them: only the leader has
// registries.
type keys struct {
	// kube is nil or namespace is "" if the controller has no namespace of its own: then nothing is
	// stored.
	kube      client.Client
	namespace string
	// config is that of each Keyring, without the clusterset and the store.
	config trust.Config
	log    logr.Logger

	mu       sync.Mutex
	signer   *trust.Signer
	keyrings map[string]*trust.Keyring // by clusterset
}

// newKeys returns the keys for the options.
func newKeys(options config.Options, deps dependencies) (*keys, error) {
	listed, err := readTrustedKeys(options.Membership.TrustedKeys)
	if err != nil {
		return nil, fmt.Errorf("--trusted-keys=%s: %w", options.Membership.TrustedKeys, err)
	}
	return &keys{
		kube: deps.kube, namespace: deps.namespace,
		config: trust.Config{
			StaleAfter: options.Registry.StaleAfter, Listed: listed, ListedOnly: options.Membership.TrustedKeysOnly, Logger: deps.log.WithName("keys"),
			Changed: func(c trust.Change) { deps.metrics.CountKeyChange(c.Reason) },
		},
		log: deps.log.WithName("keys"), keyrings: map[string]*trust.Keyring{},
	}, nil
}

func (k *keys) isStored() bool { return k.kube != nil && k.namespace != "" }

// ownKey returns the signing key of this cluster.
func (k *keys) ownKey(ctx context.Context) (*trust.Signer, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.signer != nil {
		return k.signer, nil
	}
	var err error
	if k.isStored() {
		k.signer, err = kubestore.SigningKey{Client: k.kube, Namespace: k.namespace}.Load(ctx)
	} else {
		k.signer, err = trust.NewSigner(kubestore.NewSeed(), nil)
	}
	if err != nil {
		return nil, err
	}
	if k.isStored() {
		k.log.Info("Loaded the signing key", "publicKey", k.signer.Key().String())
	} else {
		k.log.Info("Created a signing key for this process only, because the controller has no namespace: after a restart, other clusters "+
			"refuse the records of this cluster: on etcd for their --stale-after, on Cloud Map until they trust its new key (kubectl mcs trust)", "publicKey", k.signer.Key().String())
	}
	return k.signer, nil
}

// keyring returns the keys of the other clusters of a clusterset.
func (k *keys) keyring(ctx context.Context, clusterSetID string) (*trust.Keyring, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if keyring := k.keyrings[clusterSetID]; keyring != nil {
		return keyring, nil
	}
	cfg := k.config
	cfg.ClusterSetID = clusterSetID
	if k.isStored() {
		cfg.Store = &kubestore.Pins{Client: k.kube, Namespace: k.namespace, ClusterSetID: clusterSetID, Logger: k.log}
	}
	keyring, err := trust.Load(ctx, cfg)
	if err != nil {
		return nil, err
	}
	k.keyrings[clusterSetID] = keyring
	return keyring, nil
}

// readTrustedKeys reads a file with the ID of a cluster and its public key in each line, as flat
// YAML or separated by spaces. "" is no file.
func readTrustedKeys(path string) (map[string]trust.Key, error) {
	if path == "" {
		return nil, nil
	}
	text, err := os.ReadFile(path) //nolint:gosec // the administrator names the file
	if err != nil {
		return nil, fmt.Errorf("reading the public keys: %w", err)
	}
	listed := map[string]trust.Key{}
	number := 0
	for line := range strings.SplitSeq(string(text), "\n") {
		number++
		line, _, _ = strings.Cut(line, "#")
		fields := strings.Fields(strings.Replace(line, ":", " ", 1))
		if len(fields) == 0 || fields[0] == "---" {
			continue
		}
		if len(fields) != 2 {
			return nil, fmt.Errorf("line %d: want the ID of a cluster and its public key, as in \"cls1: KEY\"", number)
		}
		id, key := strings.Trim(fields[0], `"'`), strings.Trim(fields[1], `"'`)
		if err := mcs.ValidateClusterID(id); err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		if _, twice := listed[id]; twice {
			return nil, fmt.Errorf("line %d: cluster %s is listed twice", number, id)
		}
		if listed[id], err = trust.ParseKey(key); err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
	}
	return listed, nil
}

// keyringRegistry is a registry that saves the keys of the other clusters while it runs.
type keyringRegistry struct {
	registry.Registry
	keyring *trust.Keyring
}

var (
	_ registry.Reporter  = keyringRegistry{}
	_ registry.Truster   = keyringRegistry{}
	_ registry.KeyKeeper = keyringRegistry{}
)

// Run implements registry.Registry.
func (r keyringRegistry) Run(ctx context.Context, notify func(mcs.Key)) error {
	return r.keyring.Run(ctx, func() error { return r.Registry.Run(ctx, notify) })
}

// Trust implements registry.Truster.
func (r keyringRegistry) Trust(clusterID, key string) error {
	parsed, err := trust.ParseKey(key)
	if err != nil {
		return fmt.Errorf("reading the public key %q: %w", key, err)
	}
	return r.keyring.Trust(clusterID, parsed)
}

// KeepKeys implements registry.KeyKeeper.
func (r keyringRegistry) KeepKeys(imported []string) { r.keyring.SetImported(imported) }

// Report implements registry.Reporter.
func (r keyringRegistry) Report() registry.Report { return registry.ReportOf(r.Registry) }
