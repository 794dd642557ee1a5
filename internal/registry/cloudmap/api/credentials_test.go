package api

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	ststypes "github.com/aws/aws-sdk-go-v2/service/sts/types"
)

const testRole = "arn:aws:iam::111122223333:role/mcs"

// fakeSTS issues credentials with the requested duration.
type fakeSTS struct{ calls int }

func (f *fakeSTS) AssumeRole(_ context.Context, in *sts.AssumeRoleInput, _ ...func(*sts.Options)) (*sts.AssumeRoleOutput, error) {
	f.calls++
	return &sts.AssumeRoleOutput{
		AssumedRoleUser: &ststypes.AssumedRoleUser{Arn: in.RoleArn, AssumedRoleId: aws.String("AROA:" + *in.RoleSessionName)},
		Credentials: &ststypes.Credentials{
			AccessKeyId: aws.String("KEY"), SecretAccessKey: aws.String("secret"), SessionToken: aws.String("token"),
			Expiration: aws.Time(time.Now().Add(time.Duration(*in.DurationSeconds) * time.Second)),
		},
	}, nil
}

func TestCredentials_AreCached(t *testing.T) {
	api := &fakeSTS{}
	cache := assume(api, Role{ARN: testRole})
	for range 3 {
		got, err := cache.Retrieve(t.Context())
		if left := time.Until(got.Expires); err != nil || left > sessionDuration-renewal || left < sessionDuration-2*renewal-time.Minute {
			t.Errorf("credentials are renewed in %v, %v; want %v to %v before they end in %v", left, err, renewal, 2*renewal, sessionDuration)
		}
	}
	if api.calls != 1 {
		t.Errorf("%d requests, want 1", api.calls)
	}
}

// TestCredentialsOutliveFailedRenewal: credentials that cannot be renewed are used until they expire, and renewal is retried at intervals.
func TestCredentialsOutliveFailedRenewal(t *testing.T) {
	now := time.Now()
	down := errors.New("STS is down")
	tests := []struct {
		name    string
		left    time.Duration
		wantErr error
		// wantRetry is the time until the next renewal.
		wantRetry time.Duration
	}{
		{"expiry is far", renewal, nil, renewRetry},
		{"expiry is near", time.Second, nil, -2*renewal + time.Second},
		{"expired", 0, down, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := &expiringCredentials{now: func() time.Time { return now }, expires: now.Add(tt.left)}
			last := aws.Credentials{AccessKeyID: "KEY", SecretAccessKey: "secret", CanExpire: true, Expires: now}
			got, err := l.HandleFailToRefresh(t.Context(), last, down)
			if !errors.Is(err, tt.wantErr) || got.HasKeys() != (tt.wantErr == nil) {
				t.Fatalf("%+v, %v; want error %v", got, err, tt.wantErr)
			}
			if err != nil {
				return
			}
			if got, err = l.AdjustExpiresBy(got, -2*renewal); err != nil || got.Expires.Sub(now) != tt.wantRetry {
				t.Errorf("the next attempt is in %v, %v; want %v", got.Expires.Sub(now), err, tt.wantRetry)
			}
		})
	}
	if _, err := (&expiringCredentials{now: time.Now, expires: now.Add(time.Hour)}).HandleFailToRefresh(t.Context(), aws.Credentials{}, down); !errors.Is(err, down) {
		t.Errorf("without any credentials: %v, want %v", err, down)
	}
}
