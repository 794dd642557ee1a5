package config

import (
	stdcmp "cmp"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestParseSource(t *testing.T) {
	const role = "arn:aws:iam::111122223333:role/mcs-reader"
	tests := []struct {
		text  string
		want  Source
		label string
	}{
		{
			text:  "cloudmap,region=eu-central-1",
			want:  Source{AWS: AWS{Region: "eu-central-1"}},
			label: "cloudmap/eu-central-1",
		},
		{
			text:  "cloudmap,role-arn=" + role + ",role-external-id=x:1,role-session-name=cls1",
			want:  Source{AWS: AWS{RoleARN: role, ExternalID: "x:1", SessionName: "cls1"}},
			label: "cloudmap/111122223333",
		},
		{
			text:  "cloudmap,region=eu-central-1,role-arn=" + role + ",namespace-owner=444455556666",
			want:  Source{AWS: AWS{Region: "eu-central-1", RoleARN: role, NamespaceOwner: "444455556666"}},
			label: "cloudmap/eu-central-1/444455556666",
		},
		{
			text:  "cloudmap,endpoint=http://172.30.0.1:8080/?a=b",
			want:  Source{AWS: AWS{Endpoint: "http://172.30.0.1:8080/?a=b"}},
			label: "cloudmap/172.30.0.1:8080",
		},
		{
			text:  "cloudmap,name=dr,region=eu-central-1",
			want:  Source{Name: "dr", AWS: AWS{Region: "eu-central-1"}},
			label: "dr",
		},
		{
			text:  "etcd,endpoints=https://a:2379;https://b:2379,ca=/etcd/ca.crt,username=u,password-file=/etcd/password,prefix=/mcs",
			want:  Source{Backend: RegistryEtcd, Etcd: Etcd{Endpoints: "https://a:2379;https://b:2379", CAFile: "/etcd/ca.crt", Username: "u", PasswordFile: "/etcd/password", Prefix: "/mcs"}},
			label: "etcd/a:2379",
		},
	}
	for _, tt := range tests {
		got, err := ParseSource(tt.text)
		if err != nil {
			t.Errorf("%s: %v", tt.text, err)
			continue
		}
		tt.want.Backend = stdcmp.Or(tt.want.Backend, RegistryCloudMap)
		if d := cmp.Diff(tt.want, got, cmpopts.IgnoreUnexported(Source{})); d != "" {
			t.Errorf("%s (-want +got):\n%s", tt.text, d)
		}
		if got.Label() != tt.label {
			t.Errorf("%s: Label() = %q, want %q", tt.text, got.Label(), tt.label)
		}
		if err := (Sources{got}).validate(); err != nil {
			t.Error(err)
		}
	}
}

func FuzzParseSource(f *testing.F) {
	for _, text := range []string{"cloudmap,region=eu-central-1", "cloudmap", ",", "cloudmap,region=", "cloudmap,name=a,name=b", "cloudmap,=,"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		source, err := ParseSource(text)
		if err != nil {
			return
		}
		sources := Sources{source}
		if sources.String() != text {
			t.Errorf("%q: String() = %q", text, sources.String())
		}
		if err := sources.validate(); err == nil && !sourceNamePattern.MatchString(source.Label()) {
			t.Errorf("%q: Label() = %q, which is not a source name", text, source.Label())
		}
	})
}
