package cloudmaptest

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal/iampolicy"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// Serve has handler answer a request without a network, so that it works in virtual time. A
// connection that the handler closes is an error, as it is on a network, and the request has the
// host of its URL.
func Serve(handler http.Handler, r *http.Request) (response *http.Response, err error) {
	r = r.Clone(r.Context())
	r.Host = cmp.Or(r.Host, r.URL.Host)
	defer func() {
		switch p := recover(); p {
		case nil:
		case http.ErrAbortHandler:
			err = io.ErrUnexpectedEOF
		default:
			panic(p)
		}
	}()
	answer := httptest.NewRecorder()
	handler.ServeHTTP(answer, r)
	return answer.Result(), nil
}

// PolicyDocument returns a policy of deploy/iam for a cluster in the default account and Region of
// cloudmap-local, as the sed of docs/iam.md writes it.
func PolicyDocument(dir fs.FS, file string, identity mcs.Identity) ([]byte, error) {
	raw, err := fs.ReadFile(dir, file)
	if err != nil {
		return nil, err
	}
	return []byte(strings.NewReplacer(
		"<clusterset>", identity.ClusterSetID, "<cluster>", identity.ClusterID,
		"<region>", cloudmaplocal.DefaultRegion, "<account>", cloudmaplocal.DefaultAccount,
	).Replace(string(raw))), nil
}

// Policies returns policies of deploy/iam for a cluster.
func Policies(dir fs.FS, identity mcs.Identity, files ...string) (all []iampolicy.Policy, err error) {
	for _, file := range files {
		document, err := PolicyDocument(dir, file, identity)
		if err != nil {
			return nil, err
		}
		var policy iampolicy.Policy
		if err := json.Unmarshal(document, &policy); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		all = append(all, policy)
	}
	return all, nil
}

// AllHostedZones is the resource of ZoneStatements as shipped.
const AllHostedZones = "arn:aws:route53:::hostedzone/*"

// ZoneStatements are the statements of instance-dns.json that docs/iam.md says to narrow.
var ZoneStatements = []string{"ChangeRecords", "DeleteZones"}

// NarrowZones returns a policy whose ZoneStatements allow the hosted zones with these IDs alone, if
// they allow all.
func NarrowZones(policy []byte, zones ...string) ([]byte, error) {
	var document struct {
		Version   string
		Statement []map[string]any
	}
	if err := json.Unmarshal(policy, &document); err != nil {
		return nil, err
	}
	var resources []string
	for _, zone := range zones {
		resources = append(resources, strings.ReplaceAll(AllHostedZones, "*", zone))
	}
	for _, s := range document.Statement {
		if s["Resource"] == AllHostedZones && slices.Contains(ZoneStatements, fmt.Sprint(s["Sid"])) {
			s["Resource"] = resources
		}
	}
	return json.Marshal(document)
}

// Denied returns the number of requests that a cloudmap-local at url has denied, by operation.
func Denied(ctx context.Context, url string) (map[string]int, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return nil, err
	}
	denied := map[string]int{}
	for _, m := range deniedLine.FindAllStringSubmatch(string(text), -1) {
		denied[m[1]], _ = strconv.Atoi(m[2])
	}
	return denied, nil
}

var deniedLine = regexp.MustCompile(`(?m)^cloudmap_local_requests_total\{operation="(\w+)",result="AccessDeniedException"\} (\d+)$`)
