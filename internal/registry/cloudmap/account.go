package cloudmap

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials/stscreds"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery/types"
	"github.com/aws/aws-sdk-go-v2/service/sts"
)

// Role is an IAM role that is assumed, of this or another account.
type Role struct {
	// ARN names the role; "" is none.
	ARN string
	// ExternalID is what the role's trust policy may ask for.
	ExternalID string
	// SessionName shows in the account's CloudTrail; "" is the controller's name.
	SessionName string
}

const (
	defaultSessionName = "cloud-map-mcs-controller"
	// sessionDuration is the longest that AWS allows where a role assumes another one, as with IRSA, and that every role allows.
	sessionDuration = time.Hour
	// renewal is how long before their end the credentials are renewed at the latest, and at the earliest twice as early: STS may be
	// down for some minutes.
	renewal = 10 * time.Minute
	// renewRetry is the time between two attempts to renew.
	renewRetry = 30 * time.Second
)

// loadAWS reads AWS's own settings and puts cfg's above them.
func loadAWS(ctx context.Context, cfg ClientConfig) (aws.Config, error) {
	loaded, err := awsconfig.LoadDefaultConfig(ctx, awsconfig.WithCredentialsProvider(cfg.credentials),
		awsconfig.WithRetryer(func() aws.Retryer { return aws.NopRetryer{} }))
	if err != nil {
		return aws.Config{}, fmt.Errorf("reading the AWS configuration: %w", err)
	}
	// The role is assumed where we are at home, if that is known: the STS there is near, and it may be the only one that
	// can be reached.
	home := loaded.Copy()
	home.Region = cmp.Or(home.Region, cfg.Region)
	loaded.Region = cmp.Or(cfg.Region, loaded.Region)
	if loaded.Region == "" {
		return aws.Config{}, errors.New("no AWS Region is known: set --aws-region or the environment variable AWS_REGION")
	}
	if cfg.Role.ARN != "" {
		loaded.Credentials = assume(sts.NewFromConfig(home), cfg.Role)
	}
	return loaded, nil
}

// assume is the credentials of a role, renewed in time.
func assume(api stscreds.AssumeRoleAPIClient, role Role) aws.CredentialsProvider {
	provider := stscreds.NewAssumeRoleProvider(api, role.ARN, func(o *stscreds.AssumeRoleOptions) {
		o.Duration = sessionDuration
		o.RoleSessionName = cmp.Or(role.SessionName, defaultSessionName)
		if role.ExternalID != "" {
			o.ExternalID = aws.String(role.ExternalID)
		}
	})
	return aws.NewCredentialsCache(&lasting{AssumeRoleProvider: provider, now: time.Now}, func(o *aws.CredentialsCacheOptions) {
		o.ExpiryWindow, o.ExpiryWindowJitterFrac = 2*renewal, 0.5
	})
}

// lasting are credentials that are used until they end when they cannot be renewed.
type lasting struct {
	*stscreds.AssumeRoleProvider
	now func() time.Time
	// ends is when the last credentials end. The cache around retrieves one at a time.
	ends time.Time
}

var (
	_ aws.HandleFailRefreshCredentialsCacheStrategy = (*lasting)(nil)
	_ aws.AdjustExpiresByCredentialsCacheStrategy   = (*lasting)(nil)
)

// Retrieve implements aws.CredentialsProvider.
func (l *lasting) Retrieve(ctx context.Context) (aws.Credentials, error) {
	fresh, err := l.AssumeRoleProvider.Retrieve(ctx)
	if err == nil {
		l.ends = fresh.Expires
	}
	return fresh, err
}

// HandleFailToRefresh implements aws.HandleFailRefreshCredentialsCacheStrategy.
func (l *lasting) HandleFailToRefresh(_ context.Context, last aws.Credentials, err error) (aws.Credentials, error) {
	if !last.HasKeys() || !l.now().Before(l.ends) {
		return aws.Credentials{}, err
	}
	last.Expires = l.ends
	return last, nil
}

// AdjustExpiresBy implements aws.AdjustExpiresByCredentialsCacheStrategy: it puts the next renewal some time before the end, or
// where that has passed, soon.
func (l *lasting) AdjustExpiresBy(c aws.Credentials, by time.Duration) (aws.Credentials, error) {
	early, soon := c.Expires.Add(by), l.now().Add(renewRetry)
	if early.Before(soon) && soon.Before(c.Expires) {
		early = soon
	}
	c.Expires = early
	return c, nil
}

// ownAccount is c for the namespaces of our own account.
func (c *Client) ownAccount() *Client {
	own := *c
	own.owner = ""
	return &own
}

// ownerAccount is what requests about a shared namespace must name; nil for our own.
func (c *Client) ownerAccount() *string {
	if c.owner == "" {
		return nil
	}
	return aws.String(c.owner)
}

// whose asks for our own namespaces, or for those that others share with us. Namespaces of both kinds may have one name.
func (c *Client) whose() []types.NamespaceFilter {
	whose := "SELF"
	if c.owner != "" {
		whose = "OTHER_ACCOUNTS"
	}
	return []types.NamespaceFilter{{Name: types.NamespaceFilterNameResourceOwner, Values: []string{whose}}}
}

// idOf is how requests name a resource: by its ID, or by its ARN when it is in a shared namespace.
func (c *Client) idOf(id, arn *string) string {
	if c.owner != "" {
		return aws.ToString(arn)
	}
	return aws.ToString(id)
}

// notSharedError says what to do about a namespace that only its owner can make.
func (c *Client) notSharedError(name string) error {
	return fmt.Errorf("account %s shares no namespace %s with this account: create it there, as an HTTP namespace, and share it through AWS RAM", c.owner, name)
}
