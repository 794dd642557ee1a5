package kubestore

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/configmap"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/names"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

// Pins keeps the pins of a clusterset in a ConfigMap of their own, each under the key
// "<clusterset>.<cluster>" as JSON. It is not safe for concurrent use.
type Pins struct {
	Client       client.Client
	Namespace    string
	ClusterSetID string
	Logger       logr.Logger
	// version is the resource version of the ConfigMap when it was last read or written, "" if it
	// did not exist.
	version string
}

var _ trust.Store = &Pins{}

func (p *Pins) name() types.NamespacedName {
	return types.NamespacedName{Namespace: p.Namespace, Name: names.PinsConfigMap}
}

// storedPin is the format of a pin in the ConfigMap.
type storedPin struct {
	Key       string                `json:"key,omitempty"`
	From      int64                 `json:"from,omitempty"` // heartbeat
	UID       string                `json:"uid,omitempty"`
	Last      map[string]storedTime `json:"last,omitempty"`    // by registry
	Content   map[string]string     `json:"content,omitempty"` // by registry
	Left      bool                  `json:"left,omitempty"`
	Forgotten bool                  `json:"forgotten,omitempty"`
	Unsealed  []string              `json:"unsealed,omitempty"` // registries
	Since     time.Time             `json:"since,omitzero"`
}

// storedTime is the format of a time of a pin.
type storedTime struct {
	Generation int64 `json:"generation"`
	Heartbeat  int64 `json:"heartbeat"`
}

// LoadPins implements trust.Store. A value that cannot be read is logged and left out.
func (p *Pins) LoadPins(ctx context.Context) (map[string]trust.Pin, error) {
	var object corev1.ConfigMap
	err := p.Client.Get(ctx, p.name(), &object)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("reading ConfigMap %s: %w", p.name(), err)
	}
	p.version = object.ResourceVersion
	pins := map[string]trust.Pin{}
	for _, key := range slices.Sorted(maps.Keys(object.Data)) {
		clusterSetID, clusterID, _ := strings.Cut(key, ".")
		if clusterSetID != p.ClusterSetID {
			continue
		}
		pin, err := decodePin(object.Data[key])
		if err != nil {
			p.Logger.Error(err, "Failed to read the key of a cluster, pinning its current key instead", "configMap", names.PinsConfigMap, "member", clusterID)
			continue
		}
		pins[clusterID] = pin
	}
	return pins, nil
}

// SavePins implements trust.Store.
func (p *Pins) SavePins(ctx context.Context, pins map[string]trust.Pin) error {
	values := map[string]any{}
	for id, pin := range pins {
		if pin.IsZero() {
			values[p.ClusterSetID+"."+id] = nil
			continue
		}
		text, err := encodePin(pin)
		if err != nil {
			return err
		}
		values[p.ClusterSetID+"."+id] = text
	}
	return p.merge(ctx, values)
}

// merge changes the ConfigMap unless another process has changed it.
func (p *Pins) merge(ctx context.Context, values map[string]any) error {
	next, err := configmap.MergeAt(ctx, p.Client, p.name(), p.version, values)
	if apierrors.IsConflict(err) {
		return trust.ErrChanged
	}
	if err == nil {
		p.version = next
	}
	return err
}

// endKey returns the key of the ConfigMap that has the end of the last process. Versions before it
// take it for a key of another clusterset: no ID of one begins with an underscore.
func (p *Pins) endKey() string { return "_ended." + p.ClusterSetID }

// LoadEnd implements trust.Store.
func (p *Pins) LoadEnd(ctx context.Context) (time.Time, error) {
	var object corev1.ConfigMap
	if err := p.Client.Get(ctx, p.name(), &object); client.IgnoreNotFound(err) != nil {
		return time.Time{}, fmt.Errorf("reading ConfigMap %s: %w", p.name(), err)
	}
	ended, err := time.Parse(time.RFC3339Nano, object.Data[p.endKey()])
	if err != nil {
		return time.Time{}, nil //nolint:nilerr // no process has ended
	}
	return ended, nil
}

// SaveEnd implements trust.Store.
func (p *Pins) SaveEnd(ctx context.Context, ended time.Time) error {
	// The time makes it another version of the ConfigMap each time.
	text := "running since " + time.Now().UTC().Format(time.RFC3339Nano)
	if !ended.IsZero() {
		text = ended.UTC().Format(time.RFC3339Nano)
	}
	return p.merge(ctx, map[string]any{p.endKey(): text})
}

func encodePin(pin trust.Pin) (string, error) {
	stored := storedPin{From: pin.From, UID: pin.UID, Last: map[string]storedTime{}, Content: pin.Content, Left: pin.Left, Forgotten: pin.Forgotten, Unsealed: pin.Unsealed, Since: pin.Since}
	for name, at := range pin.Last {
		stored.Last[name] = storedTime(at)
	}
	if pin.Key != (trust.Key{}) {
		stored.Key = pin.Key.String()
	}
	var text strings.Builder
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false) // which takes six bytes for one of a UID
	if err := encoder.Encode(stored); err != nil {
		return "", fmt.Errorf("encoding the key of a cluster: %w", err)
	}
	return strings.TrimSuffix(text.String(), "\n"), nil
}

func decodePin(text string) (trust.Pin, error) {
	var stored storedPin
	if err := json.Unmarshal([]byte(text), &stored); err != nil {
		return trust.Pin{}, fmt.Errorf("decoding the key of a cluster: %w", err)
	}
	pin := trust.Pin{From: stored.From, UID: stored.UID, Last: map[string]trust.Time{}, Content: stored.Content, Left: stored.Left, Forgotten: stored.Forgotten, Unsealed: stored.Unsealed, Since: stored.Since}
	for name, at := range stored.Last {
		pin.Last[name] = trust.Time(at)
	}
	if stored.Key == "" {
		return pin, nil
	}
	var err error
	pin.Key, err = trust.ParseKey(stored.Key)
	return pin, err
}
