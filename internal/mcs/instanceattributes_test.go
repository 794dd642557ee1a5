package mcs

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

func TestParseInstanceAttributes(t *testing.T) {
	many := strings.Repeat("x", MaxInstanceAttributeValue+1)
	for name, tc := range map[string]struct {
		text, want, wantErr string
	}{
		"none":               {},
		"one":                {text: "team=payments", want: "team=payments"},
		"sorted":             {text: "b=2,a=1", want: "a=1\nb=2"},
		"lines and blanks":   {text: "\n a=1 ,\n\n b = 2\n", wantErr: `the name "b " is not valid`},
		"lines":              {text: "\n  b=2\n  a=1,\n", want: "a=1\nb=2"},
		"empty value":        {text: "a=", want: "a="},
		"value with =":       {text: "a=b=c", want: "a=b=c"},
		"references":         {text: "pod=$(pod),where=$(region)/$(zone)", want: "pod=$(pod)\nwhere=$(region)/$(zone)"},
		"escaped":            {text: "a=$$(HOME)", want: "a=$$(HOME)"},
		"no value":           {text: "team", wantErr: "name=value"},
		"no name":            {text: "=a", wantErr: `the name ""`},
		"long name":          {text: strings.Repeat("n", 65) + "=a", wantErr: "at most 64"},
		"long value":         {text: "a=" + many, wantErr: "more than 256 characters"},
		"twice":              {text: "a=1,a=2", wantErr: "a is there twice"},
		"not ASCII":          {text: "a=ü", wantErr: "printable ASCII"},
		"control character":  {text: "a=\x1b[31m", wantErr: "printable ASCII"},
		"unknown reference":  {text: "a=$(host)", wantErr: `refers to "host"; possible are pod, node`},
		"of the controller":  {text: "CLUSTER_ID=cls2", wantErr: "CLUSTER_ID is reserved"},
		"of AWS":             {text: "AWS_INSTANCE_CNAME=example.com", wantErr: "is reserved"},
		"of AWS, small":      {text: "aws_alias_dns_name=example.com", wantErr: "is reserved"},
		"eleven":             {text: "a=,b=,c=,d=,e=,f=,g=,h=,i=,j=,k=", wantErr: "11 attributes, at most 10"},
		"more than 4 KiB":    {text: strings.Repeat(" ", 4097), wantErr: "more than 4096 bytes"},
		"only separators":    {text: " , \n", want: ""},
		"name with a hyphen": {text: "cost-center=7", want: "cost-center=7"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ParseInstanceAttributes(tc.text)
			if (err != nil) != (tc.wantErr != "") || err != nil && !strings.Contains(err.Error(), tc.wantErr) {
				t.Fatalf("error %v, want %q", err, tc.wantErr)
			}
			if string(got) != tc.want {
				t.Errorf("attributes %q, want %q", got, tc.want)
			}
		})
	}
}

func TestInstanceAttributesOf(t *testing.T) {
	e := webExport("cls1", 0)
	e.Region = "eu-west-1"
	ep := Endpoint{Address: netip.MustParseAddr("10.10.0.1"), Zone: "eu-west-1a", Node: "node-1", Pod: "web-0"}
	attributes, err := ParseInstanceAttributes("all=$(pod) $(node) $(zone) $(region) $(cluster) $(namespace)/$(service),plain=$5,escaped=$$(pod),long=" +
		strings.Repeat("$(zone)", 30))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"all": "web-0 node-1 eu-west-1a eu-west-1 cls1 demo/web", "plain": "$5", "escaped": "$(pod)", "long": strings.Repeat("eu-west-1a", 26)[:256],
	}
	if diff := cmp.Diff(want, attributes.Of(e, ep)); diff != "" {
		t.Errorf("attributes (-want +got):\n%s", diff)
	}
	if got := attributes.Of(Export{}, Endpoint{})["all"]; got != "     /" {
		t.Errorf("unknown facts are %q", got)
	}
}

// TestNewExport_InstanceAttributes: the annotation of the ServiceExport counts before that of the
// Service, and the export has only facts that it refers to.
func TestNewExport_InstanceAttributes(t *testing.T) {
	source := func(ofExport, ofService string) Source {
		endpoint := pod("10.10.0.1", true)
		endpoint.TargetRef = &corev1.ObjectReference{Kind: "Pod", Namespace: "demo", Name: "web-0"}
		src := webSource(webSlice("web-1", endpoint))
		src.Region = "eu-west-1"
		if ofExport != "" {
			src.ServiceExport.Annotations[AnnotationInstanceAttributes] = ofExport
		}
		if ofService != "" {
			src.Service.Annotations = map[string]string{AnnotationInstanceAttributes: ofService}
		}
		return src
	}
	for name, tc := range map[string]struct {
		ofExport, ofService     string
		attributes, pod, region string
		left                    string
	}{
		"none":              {},
		"of the Service":    {ofService: "team=a", attributes: "team=a"},
		"of both":           {ofExport: "team=b", ofService: "team=a", attributes: "team=b"},
		"pod":               {ofExport: "pod=$(pod)", attributes: "pod=$(pod)", pod: "web-0"},
		"Region":            {ofExport: "r=$(region)", attributes: "r=$(region)", region: "eu-west-1"},
		"escaped":           {ofExport: "r=$$(region)", attributes: "r=$$(region)"},
		"not valid":         {ofExport: "READY=true", left: "attributes of Cloud Map instances left out: annotation " + AnnotationInstanceAttributes + ": READY is reserved"},
		"without an entry":  {ofExport: ",", left: "the list is empty"},
		"another not valid": {ofExport: "x", ofService: "team=a", left: "name=value"},
	} {
		t.Run(name, func(t *testing.T) {
			e, left, err := NewExport(source(tc.ofExport, tc.ofService), nil, start)
			if err != nil {
				t.Fatal(err)
			}
			endpoint := e.Backends[0].Endpoints[0]
			if string(e.InstanceAttributes) != tc.attributes || endpoint.Pod != tc.pod || e.Region != tc.region {
				t.Errorf("attributes %q, pod %q, Region %q; want %q, %q, %q", e.InstanceAttributes, endpoint.Pod, e.Region, tc.attributes, tc.pod, tc.region)
			}
			if lines := strings.Join(left.lines(), "\n"); (lines != "") != (tc.left != "") || !strings.Contains(lines, tc.left) {
				t.Errorf("left out: %q, want %q", lines, tc.left)
			}
		})
	}
}

// FuzzParseInstanceAttributes: the canonical form is that of itself, and keeps the bounds.
func FuzzParseInstanceAttributes(f *testing.F) {
	for _, seed := range []string{"", "a=b", "a=$(pod),b=$$(x)", "a=1\nb=2", "READY=x", "a==", "$(=)"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		attributes, err := ParseInstanceAttributes(text)
		if err != nil {
			return
		}
		if again, err := ParseInstanceAttributes(string(attributes)); err != nil || again != attributes {
			t.Errorf("%q becomes %q, %v", attributes, again, err)
		}
		values := attributes.Of(Export{Region: strings.Repeat("r", 300)}, Endpoint{Pod: strings.Repeat("p", 300)})
		if len(values) > maxInstanceAttributes {
			t.Errorf("%d attributes", len(values))
		}
		for name, value := range values {
			if len(name) > maxInstanceAttributeName || len(value) > MaxInstanceAttributeValue {
				t.Errorf("%q=%q is too long", name, value)
			}
		}
	})
}
