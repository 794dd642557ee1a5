package cli

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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/deploy"
)

// permissions are what the API server's authorizer says of what the controller needs. It sees a permission wherever it was
// granted.
type permissions struct {
	// missing are needed and denied, such as "list, watch endpointslices.discovery.k8s.io".
	missing []string
	// problem is why it could not be asked, "" when it could.
	problem string
}

// neededPermissions are those of the generated role: one for each verb on each resource.
func neededPermissions(namespace string) ([]authorizationv1.ResourceAttributes, error) {
	text, err := deploy.Files.ReadFile("rbac/role.yaml")
	if err != nil {
		return nil, err
	}
	var needed []authorizationv1.ResourceAttributes
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
			needed = append(needed, attributes(rule, in)...)
		}
	}
	return needed, nil
}

func attributes(rule rbacv1.PolicyRule, namespace string) []authorizationv1.ResourceAttributes {
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

// concurrentReviews is how many questions the authorizer gets at once.
const concurrentReviews = 8

// checkPermissions asks whether a service account may do all that the controller needs.
func checkPermissions(ctx context.Context, k *cluster, namespace, serviceAccount string) permissions {
	needed, err := neededPermissions(namespace)
	if err != nil {
		return permissions{problem: err.Error()}
	}
	denied := make([]bool, len(needed))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(concurrentReviews)
	for i, attributes := range needed {
		group.Go(func() error {
			allowed, err := mayServiceAccount(ctx, k, namespace, serviceAccount, attributes)
			denied[i] = err == nil && !allowed
			return err
		})
	}
	if err := group.Wait(); apierrors.IsForbidden(err) {
		return permissions{problem: "you may not ask: it takes the right to create subjectaccessreviews"}
	} else if err != nil {
		return permissions{problem: err.Error()}
	}
	verbs := map[string][]string{}
	for i, attributes := range needed {
		if resource := resourceOf(attributes); denied[i] && !slices.Contains(verbs[resource], attributes.Verb) {
			verbs[resource] = append(verbs[resource], attributes.Verb)
		}
	}
	var missing []string
	for _, resource := range slices.Sorted(maps.Keys(verbs)) {
		missing = append(missing, strings.Join(verbs[resource], ", ")+" "+resource)
	}
	return permissions{missing: missing}
}

// mayServiceAccount asks the authorizer about one permission of a service account.
func mayServiceAccount(ctx context.Context, k *cluster, namespace, name string, attributes authorizationv1.ResourceAttributes) (bool, error) {
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User:               fmt.Sprintf("system:serviceaccount:%s:%s", namespace, name),
		Groups:             []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"},
		ResourceAttributes: &attributes,
	}}
	review, err := k.kube.AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
	if err != nil {
		return false, err
	}
	return review.Status.Allowed, nil
}

// resourceOf is such as "serviceexports.multicluster.x-k8s.io/status".
func resourceOf(a authorizationv1.ResourceAttributes) string {
	resource := schema.GroupResource{Group: a.Group, Resource: a.Resource}.String()
	if a.Subresource != "" {
		resource += "/" + a.Subresource
	}
	return resource
}

// check is how that came out.
func (p permissions) check() check {
	c := check{Name: "permissions", Result: passed, Detail: "the controller may do all that it needs"}
	switch {
	case p.problem != "":
		c.Result, c.Detail = skipped, p.problem
	case len(p.missing) > 0:
		c.Result = broken
		c.Detail = "the controller's service account may not " + strings.Join(shorten(p.missing, 3), "; ")
		c.Hint = "put the ClusterRole, Role and bindings " + managerName + " back: kubectl mcs install (or kubectl apply -k deploy/base)"
	}
	return c
}

// shorten is at most n of list, and how many more there are.
func shorten(list []string, n int) []string {
	if len(list) <= n {
		return list
	}
	return append(slices.Clone(list[:n]), fmt.Sprintf("and %d more", len(list)-n))
}
