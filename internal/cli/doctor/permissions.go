package doctor

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/deploy"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/check"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/session"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/docs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
)

// permissions is the answer of the API server's authorizer about the permissions that the
// controller requires. The authorizer knows permissions from all roles.
type permissions struct {
	// missing are the denied ones, such as "list, watch endpointslices.discovery.k8s.io".
	missing []string
	// problem is the reason why the permissions could not be checked, "" if they were.
	problem string
}

// The files with the roles of the controller: the generated one, and the one for metrics.
const (
	roleFile        = "rbac/role.yaml"
	metricsRoleFile = "rbac/metrics-auth.yaml"
)

// requiredPermissions returns the permissions of the roles in a file: one for each verb on each
// resource.
func requiredPermissions(file, namespace string) ([]authorizationv1.ResourceAttributes, error) {
	text, err := deploy.Files.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var required []authorizationv1.ResourceAttributes
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		var role rbacv1.Role // a ClusterRole has the same rules
		if err := yaml.Unmarshal([]byte(strings.TrimPrefix(document, "---\n")), &role); err != nil {
			return nil, fmt.Errorf("reading the controller's role: %w", err)
		}
		if !strings.HasSuffix(role.Kind, "Role") {
			continue // a binding
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

// reviewPermissions asks the authorizer whether a service account has all permissions of the roles
// in a file.
func reviewPermissions(ctx context.Context, k *session.Cluster, file, namespace, serviceAccount string) permissions {
	required, err := requiredPermissions(file, namespace)
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
		slices.Sort(verbs[resource]) // of several rules
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

// check returns the check of the permissions of a controller, nil if it is not known. They are
// those that a controller of version plugin requires.
func (p permissions) check(context string, controller *status.Status, plugin string) check.Check {
	c := check.Check{Name: "permissions", Result: check.OK, Detail: "the controller has all required permissions"}
	switch {
	case p.problem != "":
		c.Result, c.Detail = check.Unknown, p.problem
	case len(p.missing) > 0 && isOtherVersion(controller, plugin):
		c.Result, c.Detail = check.Unknown, p.ofOtherVersion(controller, plugin)
	case len(p.missing) > 0:
		c.Result = check.Failed
		c.Detail = p.notGranted()
		c.Remedy = "restore the ClusterRole, Role and bindings " + session.ManagerName + ": kubectl mcs install --context " + context +
			" (or kubectl apply -k deploy/base)"
	}
	return c
}

// notGranted describes the missing permissions.
func (p permissions) notGranted() string {
	return "the controller's service account does not have permission to " + strings.Join(check.Summarize(p.missing, 3), "; ")
}

// isOtherVersion reports whether a controller has another version than this program, so that it
// may require other permissions.
func isOtherVersion(controller *status.Status, plugin string) bool {
	return controller != nil && controller.Version != plugin
}

// ofOtherVersion describes missing permissions that a controller of another version may not
// require.
func (p permissions) ofOtherVersion(controller *status.Status, plugin string) string {
	return p.notGranted() + "; " + plugin + " requires it, and the running " + controller.Version + " may not"
}

// authenticatesMetrics reports whether the controller in pod asks the API server who reads its
// metrics.
func authenticatesMetrics(pod *corev1.Pod) bool {
	if pod == nil {
		return false
	}
	return !slices.ContainsFunc(pod.Spec.Containers, func(c corev1.Container) bool {
		return slices.ContainsFunc(slices.Concat(c.Command, c.Args), func(arg string) bool {
			value, isSecure := strings.CutPrefix(arg, "--metrics-secure=")
			enabled, err := strconv.ParseBool(value)
			return isSecure && err == nil && !enabled || arg == "--metrics-bind-address=0"
		})
	})
}

// metricsCheck returns a warning if the controller requires permissions to authenticate who reads
// its metrics and does not have them, and no check otherwise: everything but the metrics works
// without them.
func (f *clusterFacts) metricsCheck(plugin string) []check.Check {
	if !authenticatesMetrics(f.pod) || len(f.metricsPermissions.missing) == 0 {
		return nil
	}
	if isOtherVersion(f.controller, plugin) {
		return []check.Check{{Name: "metrics", Result: check.Unknown, Detail: f.metricsPermissions.ofOtherVersion(f.controller, plugin)}}
	}
	return []check.Check{{
		Name: "metrics", Result: check.Warning,
		Detail: "every request is refused: the controller's service account does not have permission to " + strings.Join(f.metricsPermissions.missing, "; "),
		Remedy: "restore the ClusterRole and ClusterRoleBinding cloud-map-mcs-controller-metrics-auth: kubectl mcs install --context " + f.context +
			" (or kubectl apply -k deploy/base); --metrics-secure=false serves metrics without authentication (" + docs.URL("install.md#monitoring") + ")",
	}}
}
