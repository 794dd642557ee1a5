package api

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"github.com/aws/smithy-go"
)

// isAccessDenied reports whether IAM refused a request that has valid credentials.
func isAccessDenied(err error) bool {
	var api smithy.APIError
	return errors.As(err, &api) && (api.ErrorCode() == "AccessDeniedException" || api.ErrorCode() == "AccessDenied")
}

// lookupPause is the pause after a lookup that did not show a missing resource: where rights are
// missing, all requests are denied, again and again.
const lookupPause = 10 * time.Second

// isMissing reports whether a resource of the own account does not exist. The policies of
// deploy/iam allow writes by the tags of the resource, so IAM denies them after another cluster has
// deleted it. They allow everybody to read tags. false: it exists, or that is not known.
func (c *Client) isMissing(ctx context.Context, id string) bool {
	arn, known := c.arns.of(id)
	last := c.arns.shown.Load()
	if !known || last != nil && time.Since(*last) < lookupPause {
		return false
	}
	_, err := c.readTags(ctx, arn)
	if IsNotFound(err) {
		return true
	}
	now := time.Now()
	c.arns.shown.Store(&now)
	return false
}

// arns makes the ARNs of resources from their IDs. It is safe for concurrent use.
type arns struct {
	// prefix is that of an ARN of the own account, up to the account.
	prefix atomic.Pointer[string]
	// shown is the time of the last lookup that did not show a missing resource.
	shown atomic.Pointer[time.Time]
}

// learn notes an ARN of the own account, such as
// arn:aws:servicediscovery:us-east-1:123456789012:service/srv-e4anhexample0004.
func (a *arns) learn(arn string) {
	if a.prefix.Load() != nil {
		return
	}
	if resource := strings.LastIndexByte(arn, ':'); strings.HasPrefix(arn, "arn:") {
		prefix := arn[:resource+1]
		a.prefix.Store(&prefix)
	}
}

// of returns the ARN of a namespace or service. known is false before the first ARN is learned, and
// for other resources.
func (a *arns) of(id string) (arn string, known bool) {
	prefix := a.prefix.Load()
	if prefix == nil {
		return "", false
	}
	switch kind, _, _ := strings.Cut(id, "-"); kind {
	case "srv":
		return *prefix + "service/" + id, true
	case "ns":
		return *prefix + "namespace/" + id, true
	}
	return "", false
}
