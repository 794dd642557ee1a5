package etcd

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/docs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
)

const (
	// statusTimeout bounds the requests for the status of the members: one that does not answer in
	// a second is down.
	statusTimeout = time.Second
	// statusInterval is the time between two of them. A member can be replaced by an older one, and
	// its database grows.
	statusInterval = time.Minute
)

// ErrUnsafeServer means that an etcd member has a version in which a user can exceed the
// permissions of its role.
var ErrUnsafeServer = errors.New("in this version a user of etcd can read or write keys without the permission for them " +
	"(CVE-2026-33343, CVE-2026-44283, CVE-2026-73499): upgrade etcd to 3.6.14, 3.7.1 or newer (" + docs.URL("etcd.md#version-of-etcd") + ")")

// A release is the version of a server.
type release struct {
	major, minor, patch int
	// preview is true for releases before the final one.
	preview bool
}

// safeReleases are the first releases without the vulnerabilities of ErrUnsafeServer. Newer minor
// versions have none of them. 3.5 has fixes too, but etcd drops the permissions of users while its
// storage quota is used up (etcd issue 22386).
var safeReleases = []release{{major: 3, minor: 6, patch: 14}, {major: 3, minor: 7, patch: 1}}

var releasePattern = regexp.MustCompile(`^v?([0-9]{1,4})\.([0-9]{1,4})\.([0-9]{1,4})(-(?:alpha|beta|rc)\b.*|[-+].*)?$`)

// parseRelease reads a version as etcd reports it. Suffixes of distributions do not count.
func parseRelease(version string) (release, error) {
	parts := releasePattern.FindStringSubmatch(version)
	if parts == nil {
		return release{}, fmt.Errorf("version %q has not the form 3.7.1", version)
	}
	number := func(text string) int {
		n, _ := strconv.Atoi(text) // the pattern has checked it
		return n
	}
	preview, _ := regexp.MatchString(`^-(alpha|beta|rc)\b`, parts[4])
	return release{number(parts[1]), number(parts[2]), number(parts[3]), preview}, nil
}

// isSafe reports whether a user cannot exceed the permissions of its role in this release.
func (r release) isSafe() bool {
	last := safeReleases[len(safeReleases)-1]
	for _, safe := range safeReleases {
		if r.major == safe.major && r.minor == safe.minor {
			return r.patch > safe.patch || r.patch == safe.patch && !r.preview
		}
	}
	return r.major > last.major || r.major == last.major && r.minor > last.minor
}

// checkVersion returns ErrUnsafeServer for versions that are too old or unknown.
func checkVersion(version string) error {
	r, err := parseRelease(version)
	if err != nil {
		return fmt.Errorf("%w: %w", err, ErrUnsafeServer)
	}
	if !r.isSafe() {
		return fmt.Errorf("version %s: %w", version, ErrUnsafeServer)
	}
	return nil
}

// CheckServers returns ErrUnsafeServer if a member of etcd has a version that must not be used.
// Members that do not answer are not checked: the first connection to them is.
func (c *Client) CheckServers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	_, err := c.connection(ctx)
	if errors.Is(err, ErrUnsafeServer) {
		return err
	}
	return nil
}

// checkMembers requests the status of all members. It sets the metric of the used storage, and
// returns ErrUnsafeServer if a member must not be used. Members that do not answer have no effect.
func (c *Client) checkMembers(ctx context.Context, conn *clientv3.Client) error {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	answers := make([]*clientv3.StatusResponse, len(c.cfg.Endpoints))
	var all sync.WaitGroup
	for i, endpoint := range c.cfg.Endpoints {
		all.Go(func() {
			if answer, err := conn.Status(ctx, endpoint); err == nil {
				answers[i] = answer
			}
		})
	}
	all.Wait()
	var problems []error
	for i, answer := range answers {
		if answer == nil {
			continue
		}
		if err := checkVersion(answer.Version); err != nil {
			problems = append(problems, fmt.Errorf("etcd at %s: %w", c.cfg.Endpoints[i], err))
		}
	}
	c.reportStorage(answers)
	return errors.Join(problems...)
}

// reportStorage sets the metric of the storage quota to the member that has used most of it.
func (c *Client) reportStorage(answers []*clientv3.StatusResponse) {
	var used, quota int64
	for _, answer := range answers {
		if answer == nil || answer.DbSizeQuota <= 0 {
			continue
		}
		if quota == 0 || float64(answer.DbSize)/float64(answer.DbSizeQuota) > float64(used)/float64(quota) {
			used, quota = answer.DbSize, answer.DbSizeQuota
		}
	}
	if quota > 0 {
		c.cfg.Metrics.SetLimitUsed(c.cfg.Name, "storage", int(used), int(quota))
	}
}

// monitor checks the members of the current connection in each interval until ctx ends. If one must
// not be used, it closes the connection, and the next request reports the reason.
func (c *Client) monitor(ctx context.Context, interval time.Duration) {
	for {
		engine.Sleep(ctx, interval)
		if ctx.Err() != nil {
			return
		}
		c.mu.Lock()
		conn := c.conn
		c.mu.Unlock()
		if conn == nil {
			continue
		}
		if err := c.checkMembers(ctx, conn); err != nil {
			c.drop(conn)
		}
	}
}
