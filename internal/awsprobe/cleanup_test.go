package awsprobe

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery/types"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
)

// names returns the names of the namespaces of the account.
func (w *world) names(t *testing.T) (all []string) {
	t.Helper()
	out, err := w.sdk().ListNamespaces(t.Context(), &servicediscovery.ListNamespacesInput{})
	if err != nil {
		t.Fatal(err)
	}
	for _, ns := range out.Namespaces {
		if aws.ToString(ns.ResourceOwner) != sharer {
			all = append(all, aws.ToString(ns.Name))
		}
	}
	return all
}

func (w *world) sdk() *servicediscovery.Client {
	return servicediscovery.New(servicediscovery.Options{
		Region: w.opts.Region, HTTPClient: w.opts.HTTPClient, Credentials: credentials.NewStaticCredentialsProvider(ownKey, ownSecret, ""),
	})
}

// TestRun_Interrupted: whenever the user stops it, nothing stays, and the report says what was not
// run.
func TestRun_Interrupted(t *testing.T) {
	for _, after := range []time.Duration{100 * time.Millisecond, time.Second, 6 * time.Second, 20 * time.Second} {
		t.Run(after.String(), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				w := newWorld(t, cloudmaplocal.Behaviors{InUseFor: duration(5 * time.Second), OperationDelay: duration(500 * time.Millisecond)})
				ctx, cancel := context.WithCancel(t.Context())
				defer time.AfterFunc(after, cancel).Stop()
				report, err := Run(ctx, w.opts)
				if !errors.Is(err, context.Canceled) {
					t.Errorf("error = %v", err)
				}
				if left := w.names(t); len(left)+len(report.Left) > 0 {
					t.Errorf("left: %v, %v", left, report.Left)
				}
				if n := len(report.Rows()); n > 0 && !strings.Contains(report.Markdown(), "not run: ") && !strings.Contains(report.Markdown(), "stopped: ") {
					t.Errorf("the report does not say that it is incomplete:\n%s", report.Markdown())
				}
			})
		})
	}
}

// TestLeftovers: a run refuses to begin on the resources of an earlier one, and a sweep removes
// them and no others.
func TestLeftovers(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, cloudmaplocal.Behaviors{InUseFor: duration(time.Minute)}, 1, 2)
		mine := []types.Tag{{Key: aws.String("clusterset"), Value: aws.String("mcs-probe-abcdef")}}
		create := func(name string, tags []types.Tag) string {
			t.Helper()
			out, err := w.sdk().CreateHttpNamespace(t.Context(), &servicediscovery.CreateHttpNamespaceInput{Name: &name, Tags: tags})
			if err != nil {
				t.Fatal(err)
			}
			got, err := w.sdk().GetOperation(t.Context(), &servicediscovery.GetOperationInput{OperationId: out.OperationId})
			if err != nil {
				t.Fatal(err)
			}
			return got.Operation.Targets["NAMESPACE"]
		}
		create("production", mine)
		ns := create("mcs.mcs-probe-abcdef", mine)
		created, err := w.sdk().CreateService(t.Context(), &servicediscovery.CreateServiceInput{NamespaceId: &ns, Name: aws.String("members")})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.sdk().RegisterInstance(t.Context(), &servicediscovery.RegisterInstanceInput{
			ServiceId: created.Service.Id, InstanceId: aws.String("a"), Attributes: map[string]string{}}); err != nil {
			t.Fatal(err)
		}
		if _, err := Run(t.Context(), w.opts); !errors.Is(err, ErrLeftovers) || !strings.Contains(err.Error(), "mcs.mcs-probe-abcdef") {
			t.Errorf("error = %v", err)
		}
		var progress bytes.Buffer
		w.opts.Progress = &progress
		if err := Sweep(t.Context(), w.opts); err != nil {
			t.Error(err)
		}
		if !strings.Contains(progress.String(), "removed namespace mcs.mcs-probe-abcdef") {
			t.Errorf("printed %s", progress.String())
		}
		create("mcs-probe-of-others", nil)
		if err := Sweep(t.Context(), w.opts); err == nil || !strings.Contains(err.Error(), "has not the tags of a probe") {
			t.Errorf("error = %v", err)
		}
		if got := strings.Join(w.names(t), " "); !strings.Contains(got, "production") || !strings.Contains(got, "mcs-probe-of-others") {
			t.Errorf("namespaces: %s", got)
		}
	})
}

// TestRun_Rates: the rates of cloudmap-local are those that are assumed.
func TestRun_Rates(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, cloudmaplocal.Behaviors{}, 2, 7)
		w.opts.Rates = true
		report, _ := w.probeIt(t)
		throttled := 0
		for _, row := range report.Rows() {
			if row.Probe == 7 && strings.Contains(row.Got, "the others ThrottlingException") {
				throttled++
			}
		}
		if throttled != len(ratedOperations) {
			t.Errorf("%d of %d operations were throttled:\n%s", throttled, len(ratedOperations), report.Markdown())
		}
	})
}

func TestReport(t *testing.T) {
	r := Report{Region: "eu-central-1", Account: "123456789012"}
	r.add(Row{Probe: 2, Question: "b", Got: "arn:aws:servicediscovery:eu-central-1:123456789012:namespace/ns-1 | x"})
	r.add(Row{Probe: 1, Question: "a"})
	r.found("revisionBase", int64(71462688285136850))
	text := r.Markdown()
	if strings.Contains(text, "123456789012") || !strings.Contains(text, `:************:namespace/ns-1 \| x`) {
		t.Errorf("not masked:\n%s", text)
	}
	if strings.Index(text, "| 1 | a") > strings.Index(text, "| 2 | b") {
		t.Errorf("not sorted:\n%s", text)
	}
	if got := string(r.Behaviors()); got != "{\n  \"revisionBase\": 71462688285136850\n}\n" {
		t.Errorf("behaviors: %s", got)
	}
}

func TestCost(t *testing.T) {
	chosen, skipped := Options{VPC: "vpc-1"}.choose()
	if got := costOf(chosen); !strings.Contains(got, "hosted zone") || !strings.Contains(got, "$0.0") {
		t.Errorf("%s", got)
	}
	if len(chosen) != 9 || skipped[7] != "--rates" || skipped[9] != "--role" || skipped[11] != "--share" {
		t.Errorf("%d probes, skipped %v", len(chosen), skipped)
	}
	for i, p := range probes {
		if p.number != i+1 || p.requests == 0 {
			t.Errorf("probe %d is at %d with %d requests", p.number, i, p.requests)
		}
	}
}
