package doctor

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/deploy"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/check"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/session"
)

// permissions is the answer of the API server's authorizer about the permissions that the controller requires. The authorizer
// knows permissions from all roles.
type permissions struct {
	// missing are the denied ones, such as "list, watch endpointslices.discovery.k8s.io".
	missing []string
	// problem is why the permissions could not be checked, "" if they were.
	problem string
}

// requiredPermissions returns the permissions of the generated role: one for each verb on each resource.
func requiredPermissions(namespace string) ([]authorizationv1.ResourceAttributes, error) {
	text, err := deploy.Files.ReadFile("rbac/role.yaml")
	if err != nil {
		return nil, err
	}
	var required []authorizationv1.ResourceAttributes
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		var role rbacv1.Role // a ClusterRole has the same rules
		if err := yaml.Unmarshal([]byte(strings.TrimPrefix(document, "---\n")), &role); err != nil {
			return nil, fmt.Errorf("reading the controller's role: %w", err)
		}
		in := ""
		if role.Kind == "Role" {
			in = namespace
		}
		for _, rule := range role.Rules {
			required = append(required, ruleAttributes(rule, in)...)
		}
	}
	return required, nil
}

// ruleAttributes returns one entry for each verb, resource and resource name of the rule.
func ruleAttributes(rule rbacv1.PolicyRule, namespace string) []authorizationv1.ResourceAttributes {
	names := rule.ResourceNames
	if len(names) == 0 {
		names = []string{""}
	}
	var out []authorizationv1.ResourceAttributes
	for _, group := range rule.APIGroups {
		for _, resource := range rule.Resources {
			resource, subresource, _ := strings.Cut(resource, "/")
			for _, verb := range rule.Verbs {
				for _, name := range names {
					out = append(out, authorizationv1.ResourceAttributes{
						Namespace: namespace, Group: group, Resource: resource, Subresource: subresource, Verb: verb, Name: name,
					})
				}
			}
		}
	}
	return out
}

// concurrentReviews limits the concurrent requests to the authorizer.
const concurrentReviews = 8

// reviewPermissions asks the authorizer whether a service account has all permissions that the controller requires.
func reviewPermissions(ctx context.Context, k *session.Cluster, namespace, serviceAccount string) permissions {
	required, err := requiredPermissions(namespace)
	if err != nil {
		return permissions{problem: err.Error()}
	}
	denied := make([]bool, len(required))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(concurrentReviews)
	for i, attributes := range required {
		group.Go(func() error {
			allowed, err := k.ServiceAccountCan(ctx, namespace, serviceAccount, attributes)
			denied[i] = err == nil && !allowed
			return err
		})
	}
	if err := group.Wait(); apierrors.IsForbidden(err) {
		return permissions{problem: "you do not have permission to create subjectaccessreviews"}
	} else if err != nil {
		return permissions{problem: err.Error()}
	}
	return permissions{missing: listDenied(required, denied)}
}

// listDenied returns the denied permissions by resource, sorted.
func listDenied(required []authorizationv1.ResourceAttributes, denied []bool) []string {
	verbs := map[string][]string{}
	for i, attributes := range required {
		if resource := resourceName(attributes); denied[i] && !slices.Contains(verbs[resource], attributes.Verb) {
			verbs[resource] = append(verbs[resource], attributes.Verb)
		}
	}
	var missing []string
	for _, resource := range slices.Sorted(maps.Keys(verbs)) {
		missing = append(missing, strings.Join(verbs[resource], ", ")+" "+resource)
	}
	return missing
}

// resourceName returns a name such as "serviceexports.multicluster.x-k8s.io/status".
func resourceName(a authorizationv1.ResourceAttributes) string {
	resource := schema.GroupResource{Group: a.Group, Resource: a.Resource}.String()
	if a.Subresource != "" {
		resource += "/" + a.Subresource
	}
	return resource
}

func (p permissions) check(context string) check.Check {
	c := check.Check{Name: "permissions", Result: check.OK, Detail: "the controller has all required permissions"}
	switch {
	case p.problem != "":
		c.Result, c.Detail = check.Unknown, p.problem
	case len(p.missing) > 0:
		c.Result = check.Failed
		c.Detail = "the controller's service account does not have permission to " + strings.Join(check.Summarize(p.missing, 3), "; ")
		c.Remedy = "restore the ClusterRole, Role and bindings " + session.ManagerName + ": kubectl mcs install --context " + context +
			" (or kubectl apply -k deploy/base)"
	}
	return c
}
