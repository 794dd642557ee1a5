package main

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/go-logr/logr"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap"
	cloudmapapi "github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/clusterset"
)

// observerInterval is the poll interval of the observer: the error of its times, a twentieth of the
// target of 5 s.
const observerInterval = 250 * time.Millisecond

// observer reads Cloud Map without being a member and records when it first shows each export of
// cls1.
type observer struct {
	mu    sync.Mutex
	shown map[string]time.Time // by name of the service
}

// observeRegistry reads cloudmap-local until ctx ends.
func observeRegistry(ctx context.Context) (*observer, error) {
	cloudMap, err := cloudmapapi.NewClient(ctx, cloudmapapi.Config{
		Region: "ap-southeast-2", Endpoint: clusterset.Endpoint, Insecure: true, Credentials: credentials.NewStaticCredentialsProvider("AKIDLOCAL", "local", ""),
	})
	if err != nil {
		return nil, err
	}
	settings := config.Default().Registry
	keyring, err := newKeyring(ctx, clusterset.ClusterSetID, settings.StaleAfter)
	if err != nil {
		return nil, err
	}
	registry, err := cloudmap.New(cloudMap, cloudmap.Config{
		Keyring:  keyring,
		Identity: mcs.Identity{ClusterID: "observer", ClusterSetID: clusterset.ClusterSetID, UID: "observer"},
		Version:  "bench", ReadOnly: true, Logger: logr.Discard(),
		PollInterval: observerInterval, PollIntervalWithNotifications: settings.PollIntervalWithNotifications,
		HeartbeatInterval: settings.HeartbeatInterval, StaleAfter: settings.StaleAfter,
	})
	if err != nil {
		return nil, err
	}
	o := &observer{shown: map[string]time.Time{}}
	go func() {
		_ = registry.Run(ctx, func(key mcs.Key) { // returns when ctx ends
			view, err := registry.Lookup(ctx, key)
			if err != nil || key.Namespace != namespace || view.Clusters["cls1"].Export == nil {
				return
			}
			o.mu.Lock()
			defer o.mu.Unlock()
			if o.shown[key.Name].IsZero() {
				o.shown[key.Name] = time.Now()
			}
		})
	}()
	return o, nil
}

// times returns when the registry showed each export. It is an error if it did not show all.
func (o *observer) times(exports int) (map[string]time.Time, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.shown) != exports {
		return nil, fmt.Errorf("the registry showed %d of %d exports", len(o.shown), exports)
	}
	return maps.Clone(o.shown), nil
}
