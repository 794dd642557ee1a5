package controllertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	mcscrd "sigs.k8s.io/mcs-api/config/crd"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
	"sigs.k8s.io/yaml"

	aboutv1beta1 "github.com/cloud-map-mcs/cloud-map-mcs-controller/api/about/v1beta1"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/deploy"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/apiservertest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/kube"
)

// Kubernetes is an API server with the CRDs, the RBAC and the admission policy of the controller.
type Kubernetes struct {
	Env *envtest.Environment
	// Admin has all permissions and reads without a cache. Config is the client configuration of
	// the controller.
	Admin  client.Client
	Config *rest.Config
}

// StartKubernetes starts an API server with crds and the controller's RBAC. version is that of the
// MCS and About APIs; wrap, if set, gets the controller's requests.
func StartKubernetes(version string, wrap transport.WrapperFunc, crds ...*apiextensionsv1.CustomResourceDefinition) (*Kubernetes, error) {
	return StartKubernetesIn(&envtest.Environment{}, version, wrap, crds...)
}

// StartKubernetesIn is StartKubernetes with arguments of the API server in env.
func StartKubernetesIn(env *envtest.Environment, version string, wrap transport.WrapperFunc, crds ...*apiextensionsv1.CustomResourceDefinition) (*Kubernetes, error) {
	env.CRDs = crds
	k := &Kubernetes{Env: env}
	cfg, err := apiservertest.Start(k.Env)
	if err != nil {
		return nil, err
	}
	k.Admin, err = client.New(cfg, client.Options{Scheme: adminScheme(version)})
	if err == nil {
		err = k.installRBAC()
	}
	if err == nil {
		k.Config, err = k.controllerConfig(wrap)
	}
	if err == nil {
		err = k.installPolicy()
	}
	if err != nil {
		return nil, errors.Join(err, k.Env.Stop())
	}
	return k, nil
}

func adminScheme(version string) *runtime.Scheme {
	scheme, err := kube.NewScheme(schema.GroupVersion{Group: mcsv1beta1.GroupName, Version: version})
	if err != nil {
		panic(err)
	}
	for _, add := range []func(*runtime.Scheme) error{admissionv1.AddToScheme, rbacv1.AddToScheme, eventsv1.AddToScheme, apiextensionsv1.AddToScheme, authenticationv1.AddToScheme, authorizationv1.AddToScheme} {
		if err := add(scheme); err != nil {
			panic(err)
		}
	}
	aboutv1beta1.AddToScheme(scheme, schema.GroupVersion{Group: aboutv1beta1.GroupName, Version: version})
	return scheme
}

// InstallNamespace is the controller's namespace.
const InstallNamespace = "cloud-map-mcs-system"

// ControllerUser is the user name of the controller's ServiceAccount.
const ControllerUser = "system:serviceaccount:" + InstallNamespace + ":cloud-map-mcs-controller-manager"

// installRBAC grants ControllerUser exactly the permissions that deploy/rbac grants the
// controller's ServiceAccount.
func (k *Kubernetes) installRBAC() error {
	var file []byte
	for _, name := range []string{"role.yaml", "metrics-auth.yaml"} {
		text, err := deploy.Files.ReadFile("rbac/" + name)
		if err != nil {
			return err
		}
		file = append(append(file, text...), "---\n"...)
	}
	objects := []client.Object{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: InstallNamespace}}}
	subjects := []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: ControllerUser}}
	for doc := range bytes.SplitSeq(file, []byte("---\n")) {
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal(doc, &kind); err != nil {
			return err
		}
		ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind.Kind}
		switch kind.Kind {
		case "ClusterRole":
			var role rbacv1.ClusterRole
			if err := yaml.Unmarshal(doc, &role); err != nil {
				return err
			}
			ref.Name = role.Name
			objects = append(objects, &role, &rbacv1.ClusterRoleBinding{
				ObjectMeta: metav1.ObjectMeta{Name: role.Name}, RoleRef: ref, Subjects: subjects,
			})
		case "Role":
			var role rbacv1.Role
			if err := yaml.Unmarshal(doc, &role); err != nil {
				return err
			}
			ref.Name = role.Name
			objects = append(objects, &role, &rbacv1.RoleBinding{
				ObjectMeta: metav1.ObjectMeta{Namespace: role.Namespace, Name: role.Name}, RoleRef: ref, Subjects: subjects,
			})
		}
	}
	for _, obj := range objects {
		if err := k.Admin.Create(context.Background(), obj); err != nil {
			return err
		}
	}
	return nil
}

// installPolicy restricts ControllerUser to its own objects (deploy/rbac/policy.yaml), and waits
// until that is in effect.
func (k *Kubernetes) installPolicy() error {
	file, err := deploy.Files.ReadFile("rbac/policy.yaml")
	if err != nil {
		return err
	}
	for doc := range bytes.SplitSeq(file, []byte("\n---\n")) {
		var obj unstructured.Unstructured
		if err := yaml.Unmarshal(doc, &obj.Object); err != nil {
			return err
		}
		if err := k.Admin.Create(context.Background(), &obj); err != nil {
			return err
		}
	}
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "probe"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
	if err := k.awaitPolicy(service, ownObjects); err != nil {
		return err
	}
	return k.awaitPolicy(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: InstallNamespace, Name: "probe"}}, controlKeys)
}

// The policies of deploy/rbac/policy.yaml.
const (
	ownObjects  = "cloud-map-mcs-controller-own-objects"
	controlKeys = "cloud-map-mcs-controller-control-keys"
)

// AllowAutoExport lets ControllerUser create ServiceExports, as the chart does with
// autoExportSelector, and waits until that is in effect.
func (k *Kubernetes) AllowAutoExport() error {
	var policy admissionv1.ValidatingAdmissionPolicy
	if err := k.Admin.Get(context.Background(), client.ObjectKey{Name: ownObjects}, &policy); err != nil {
		return err
	}
	for i := range policy.Spec.Variables {
		if v := &policy.Spec.Variables[i]; v.Name == "autoExport" {
			v.Expression = "true"
		}
	}
	if err := k.Admin.Update(context.Background(), &policy); err != nil {
		return err
	}
	return k.awaitPolicy(&mcsv1beta1.ServiceExport{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: "probe", Labels: map[string]string{"app.kubernetes.io/managed-by": "cloud-map-mcs-controller"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: "probe", UID: "probe"}},
	}}, "")
}

// awaitPolicy waits until ControllerUser cannot create obj because of a policy, or can create it if
// refusedBy is "".
func (k *Kubernetes) awaitPolicy(obj client.Object, refusedBy string) error {
	controller, err := client.New(k.Config, client.Options{Scheme: k.Admin.Scheme()})
	if err != nil {
		return err
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(25 * time.Millisecond) {
		err := controller.Create(context.Background(), obj.DeepCopyObject().(client.Object), client.DryRunAll)
		if refusedBy == "" && err == nil || refusedBy != "" && apierrors.IsForbidden(err) && strings.Contains(err.Error(), refusedBy) {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the policy %s is not in effect: creating a %T: %w", refusedBy, obj, err)
		}
	}
}

func (k *Kubernetes) controllerConfig(wrap transport.WrapperFunc) (*rest.Config, error) {
	user, err := k.Env.AddUser(envtest.User{Name: ControllerUser}, nil)
	if err != nil {
		return nil, err
	}
	cfg := user.Config()
	defaults := config.Default().Kubernetes
	cfg.QPS, cfg.Burst = defaults.QPS, defaults.Burst
	if wrap != nil {
		cfg.Wrap(wrap)
	}
	return cfg, nil
}

// MCSCRDs returns the CRDs of the MCS API.
func MCSCRDs() []*apiextensionsv1.CustomResourceDefinition {
	return []*apiextensionsv1.CustomResourceDefinition{parseCRD(mcscrd.ServiceExportCRD), parseCRD(mcscrd.ServiceImportCRD)}
}

// AboutCRDs returns the CRD of ClusterProperty.
func AboutCRDs() []*apiextensionsv1.CustomResourceDefinition {
	file, err := deploy.Files.ReadFile("crds/about.k8s.io_clusterproperties.yaml")
	if err != nil {
		panic(err)
	}
	return []*apiextensionsv1.CustomResourceDefinition{parseCRD(file)}
}

func parseCRD(file []byte) *apiextensionsv1.CustomResourceDefinition {
	var crd apiextensionsv1.CustomResourceDefinition
	if err := yaml.Unmarshal(file, &crd); err != nil {
		panic(err)
	}
	return &crd
}
