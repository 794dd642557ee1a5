package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
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

// TestCredentialsOutliveFailedRenewal: credentials that cannot be renewed are used until they
// expire, and renewal is retried at intervals.
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

// TestRegionOrder tests the order of docs/reference/flags.md, which is that of the legacy
// controller.
func TestRegionOrder(t *testing.T) {
	metadata := serveInstanceMetadata(t, "eu-south-2")
	shared := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(shared, []byte("[default]\nregion = eu-north-1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		flag, variable, file, metadata string
		want                           string
	}{
		"flag":                  {flag: "eu-west-1", variable: "eu-central-1", file: shared, metadata: metadata, want: "eu-west-1"},
		"environment":           {variable: "eu-central-1", file: shared, metadata: metadata, want: "eu-central-1"},
		"shared configuration":  {file: shared, metadata: metadata, want: "eu-north-1"},
		"instance metadata":     {file: os.DevNull, metadata: metadata, want: "eu-south-2"},
		"metadata out of reach": {file: os.DevNull, metadata: "http://127.0.0.1:1"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Setenv("AWS_REGION", tt.variable)
			t.Setenv("AWS_DEFAULT_REGION", "")
			t.Setenv("AWS_CONFIG_FILE", tt.file)
			t.Setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", tt.metadata)
			loaded, err := loadAWS(t.Context(), Config{Region: tt.flag})
			if loaded.Region != tt.want || (err == nil) != (tt.want != "") {
				t.Errorf("Region %q, error %v; want %q", loaded.Region, err, tt.want)
			}
			if err != nil && (!strings.Contains(err.Error(), "--aws-region") || !strings.Contains(err.Error(), "hop limit")) {
				t.Errorf("error %q does not say what to set, or why the metadata is out of reach", err)
			}
		})
	}
}

// A role is assumed in the Region that the controller runs in, which may be another one than the
// registry's.
func TestRoleIsAssumedInOwnRegion(t *testing.T) {
	metadata := serveInstanceMetadata(t, "eu-south-2")
	var authorization string
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		authorization = r.Header.Get("Authorization")
		http.Error(w, "denied", http.StatusForbidden)
	}))
	t.Cleanup(api.Close)
	for name, tt := range map[string]struct{ flag, variable, want string }{
		"Region of the registry only":   {flag: "eu-west-1", want: "eu-west-1"},
		"another Region of the own":     {flag: "eu-west-1", variable: "eu-central-1", want: "eu-central-1"},
		"Region in the instance's data": {want: "eu-south-2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("AWS_REGION", tt.variable)
			t.Setenv("AWS_DEFAULT_REGION", "")
			t.Setenv("AWS_CONFIG_FILE", os.DevNull)
			t.Setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", metadata)
			t.Setenv("AWS_ENDPOINT_URL_STS", api.URL)
			authorization = ""
			loaded, err := loadAWS(t.Context(), Config{Region: tt.flag, Role: Role{ARN: testRole}, Credentials: credentials.NewStaticCredentialsProvider("AKID", "secret", "")})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := loaded.Credentials.Retrieve(t.Context()); err == nil || !strings.Contains(authorization, "/"+tt.want+"/sts/") {
				t.Errorf("error %v, authorization %q; want a denied request to STS in %s", err, authorization, tt.want)
			}
		})
	}
}

// serveInstanceMetadata serves the token and the identity document of IMDSv2, which alone is
// allowed on new EKS nodes.
func serveInstanceMetadata(t *testing.T, region string) string {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("PUT /latest/api/token", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Aws-Ec2-Metadata-Token-Ttl-Seconds", "300")
		fmt.Fprint(w, "token")
	})
	mux.HandleFunc("GET /latest/dynamic/instance-identity/document", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Aws-Ec2-Metadata-Token") != "token" {
			http.Error(w, "no token", http.StatusUnauthorized)
			return
		}
		fmt.Fprintf(w, `{"region": %q}`, region)
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL
}
