package api

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials/stscreds"
	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery/types"
	"github.com/aws/aws-sdk-go-v2/service/sts"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/names"
)

// Role is an IAM role to assume, of this or another account.
type Role struct {
	// ARN names the role; "" is none.
	ARN string
	// ExternalID is the external ID that the role's trust policy requires, if any.
	ExternalID string
	// SessionName appears in the account's CloudTrail; "" is the controller's name.
	SessionName string
}

const (
	defaultSessionName = names.Product
	// sessionDuration is the longest session that AWS allows for role chaining, as with IRSA, and
	// that every role allows.
	sessionDuration = time.Hour
	// renewal is the shortest time before expiry at which credentials are renewed. The time is
	// random, between renewal and twice as long, so that STS may be down for some minutes.
	renewal = 10 * time.Minute
	// renewRetry is the time between two attempts to renew.
	renewRetry = 30 * time.Second
	// metadataTimeout is for the two requests for the Region (token, identity document). The
	// metadata service is on the node itself.
	metadataTimeout = 5 * time.Second
)

// loadAWS reads AWS's own configuration, which cfg overrides.
func loadAWS(ctx context.Context, cfg Config) (aws.Config, error) {
	loaded, err := awsconfig.LoadDefaultConfig(ctx, awsconfig.WithCredentialsProvider(cfg.Credentials),
		awsconfig.WithRetryer(func() aws.Retryer { return aws.NopRetryer{} }))
	if err != nil {
		return aws.Config{}, fmt.Errorf("reading the AWS configuration: %w", err)
	}
	// The role is assumed in the Region that the controller runs in, if that is known: its STS
	// endpoint is near and may be the only one that can be reached.
	home := loaded.Copy()
	home.Region = cmp.Or(home.Region, cfg.Region)
	loaded.Region = cmp.Or(cfg.Region, loaded.Region)
	if loaded.Region == "" {
		region, err := readInstanceRegion(ctx, loaded)
		if err != nil {
			return aws.Config{}, err
		}
		loaded.Region, home.Region = region, region
	}
	if cfg.Role.ARN != "" {
		client := sts.NewFromConfig(home)
		if err := cfg.checkEndpoint(aws.ToString(client.Options().BaseEndpoint)); err != nil {
			return aws.Config{}, err
		}
		loaded.Credentials = assume(client, cfg.Role)
	}
	return loaded, nil
}

// readInstanceRegion returns the Region in the metadata of the EC2 instance that the controller
// runs on, as the legacy controller does if neither the environment nor the shared configuration
// names one.
func readInstanceRegion(ctx context.Context, loaded aws.Config) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, metadataTimeout)
	defer cancel()
	out, err := imds.NewFromConfig(loaded).GetRegion(ctx, nil)
	if err != nil {
		return "", fmt.Errorf("no AWS Region is known: set --aws-region or AWS_REGION, because the EC2 instance metadata cannot be read "+
			"(pods reach it only if the hop limit of the node is 2 or more; it is 1 with EKS Auto Mode): %w", err)
	}
	return out.Region, nil
}

// assume returns the credentials of a role, renewed before they expire.
func assume(api stscreds.AssumeRoleAPIClient, role Role) aws.CredentialsProvider {
	provider := stscreds.NewAssumeRoleProvider(api, role.ARN, func(o *stscreds.AssumeRoleOptions) {
		o.Duration = sessionDuration
		o.RoleSessionName = cmp.Or(role.SessionName, defaultSessionName)
		if role.ExternalID != "" {
			o.ExternalID = aws.String(role.ExternalID)
		}
	})
	return aws.NewCredentialsCache(&expiringCredentials{AssumeRoleProvider: provider, now: time.Now}, func(o *aws.CredentialsCacheOptions) {
		o.ExpiryWindow, o.ExpiryWindowJitterFrac = 2*renewal, 0.5
	})
}

// expiringCredentials keeps using the current credentials until expiry if renewal fails.
type expiringCredentials struct {
	*stscreds.AssumeRoleProvider
	now func() time.Time
	// expires is the expiry of the current credentials. The enclosing cache calls one method at a
	// time.
	expires time.Time
}

var (
	_ aws.HandleFailRefreshCredentialsCacheStrategy = (*expiringCredentials)(nil)
	_ aws.AdjustExpiresByCredentialsCacheStrategy   = (*expiringCredentials)(nil)
)

// Retrieve implements aws.CredentialsProvider.
func (e *expiringCredentials) Retrieve(ctx context.Context) (aws.Credentials, error) {
	fresh, err := e.AssumeRoleProvider.Retrieve(ctx)
	if err == nil {
		e.expires = fresh.Expires
	}
	return fresh, err
}

// HandleFailToRefresh implements aws.HandleFailRefreshCredentialsCacheStrategy.
func (e *expiringCredentials) HandleFailToRefresh(_ context.Context, last aws.Credentials, err error) (aws.Credentials, error) {
	if !last.HasKeys() || !e.now().Before(e.expires) {
		return aws.Credentials{}, err
	}
	last.Expires = e.expires
	return last, nil
}

// AdjustExpiresBy implements aws.AdjustExpiresByCredentialsCacheStrategy. by is negative: the next
// renewal is that long before expiry, or in renewRetry if that time has passed.
func (e *expiringCredentials) AdjustExpiresBy(c aws.Credentials, by time.Duration) (aws.Credentials, error) {
	early, soon := c.Expires.Add(by), e.now().Add(renewRetry)
	if early.Before(soon) && soon.Before(c.Expires) {
		early = soon
	}
	c.Expires = early
	return c, nil
}

// UsesSharedNamespace reports whether the clusterset's namespace belongs to another account.
func (c *Client) UsesSharedNamespace() bool { return c.owner != "" }

// InOwnAccount returns a client for the namespaces of the own account.
func (c *Client) InOwnAccount() *Client {
	own := *c
	own.owner = ""
	return &own
}

// ownerAccount returns the owner that requests about a shared namespace must name; nil for a
// namespace of the own account.
func (c *Client) ownerAccount() *string {
	if c.owner == "" {
		return nil
	}
	return aws.String(c.owner)
}

// namespaceFilter selects either the own namespaces or those that other accounts share. A name can
// exist in both.
func (c *Client) namespaceFilter() []types.NamespaceFilter {
	owner := "SELF"
	if c.owner != "" {
		owner = "OTHER_ACCOUNTS"
	}
	return []types.NamespaceFilter{{Name: types.NamespaceFilterNameResourceOwner, Values: []string{owner}}}
}

// resourceID returns the identifier of a resource in requests: its ID, or its ARN if it is in a
// shared namespace.
func (c *Client) resourceID(id, arn *string) string {
	if c.owner != "" {
		return aws.ToString(arn)
	}
	c.arns.learn(aws.ToString(arn))
	return aws.ToString(id)
}

// notSharedError returns the error for a namespace that only its owner can create.
func (c *Client) notSharedError(name string) error {
	return fmt.Errorf("account %s shares no namespace %s with this account: create it there, as an HTTP namespace, and share it through AWS RAM", c.owner, name)
}
