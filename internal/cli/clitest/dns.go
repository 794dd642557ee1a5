package clitest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/session"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/coredns"
)

// StockCorefile is a Corefile without clusterset.local.
const StockCorefile = `.:53 {
    errors
    kubernetes cluster.local in-addr.arpa ip6.arpa {
       pods insecure
       fallthrough in-addr.arpa ip6.arpa
    }
    forward . /etc/resolv.conf
    cache 30
    reload
}
`

// CoreDNS is a cluster with a stock CoreDNS. Its pods answer according to the Corefile, which they read when they restart.
type CoreDNS struct {
	Kube       *fake.Clientset
	Deployment *appsv1.Deployment
	Config     *corev1.ConfigMap
	// Objects are further objects of the cluster.
	Objects []runtime.Object

	NoCRDs, NoReviews, NoPortForward bool
	// QueryError is the error of every query.
	QueryError error
	// SilentPods are pods that never answer for clusterset.local.
	SilentPods []string
	// IgnoresRestart makes the pods keep their Corefile.
	IgnoresRestart bool
	// DeniedResource is the resource that the controller may not use; "*" is all.
	DeniedResource string

	running string // the Corefile of the running pods
}

// NewCoreDNS returns a cluster with two ready CoreDNS pods and one that starts.
func NewCoreDNS() *CoreDNS {
	replicas, labels := int32(2), map[string]string{"k8s-app": "kube-dns"}
	return &CoreDNS{
		Deployment: &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "coredns", Generation: 1, Labels: map[string]string{}},
			Spec: appsv1.DeploymentSpec{
				Replicas: &replicas,
				Selector: &metav1.LabelSelector{MatchLabels: labels},
				Strategy: appsv1.DeploymentStrategy{RollingUpdate: &appsv1.RollingUpdateDeployment{MaxUnavailable: new(intstr.FromInt32(1))}},
				Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
					ServiceAccountName: "coredns",
					Containers:         []corev1.Container{{Name: "coredns", Image: "registry.k8s.io/coredns/coredns:v1.15.0"}},
				}},
			},
			Status: appsv1.DeploymentStatus{ObservedGeneration: 1, Replicas: 2, UpdatedReplicas: 2, AvailableReplicas: 2},
		},
		Config: &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "coredns", Labels: map[string]string{}},
			Data:       map[string]string{"Corefile": StockCorefile, "NodeHosts": "untouched"},
		},
		Objects: []runtime.Object{
			coreDNSPod("coredns-1", corev1.ConditionTrue), coreDNSPod("coredns-2", corev1.ConditionTrue), coreDNSPod("coredns-starting", corev1.ConditionFalse),
		},
	}
}

func coreDNSPod(name string, ready corev1.ConditionStatus) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name, Labels: map[string]string{"k8s-app": "kube-dns"}},
		Status:     corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}},
	}
}

// Enable enables clusterset.local before the cluster starts.
func (c *CoreDNS) Enable() {
	enabled, err := coredns.Enable(c.Config.Data["Corefile"], "")
	if err != nil {
		panic(err)
	}
	c.Config.Data["Corefile"] = enabled
	c.Objects = append(c.Objects, coredns.Role(), coredns.Binding("kube-system", "coredns"))
}

// SetImage sets the image of CoreDNS.
func (c *CoreDNS) SetImage(ref string) { c.Deployment.Spec.Template.Spec.Containers[0].Image = ref }

// SetCorefile sets the Corefile before the cluster starts.
func (c *CoreDNS) SetCorefile(text string) { c.Config.Data["Corefile"] = text }

// Start starts the API server of the cluster: a fake clientset with an authorizer and with CRDs.
func (c *CoreDNS) Start() {
	c.Kube = fake.NewClientset(append([]runtime.Object{c.Deployment, c.Config}, c.Objects...)...)
	c.running = c.Config.Data["Corefile"]
	if !c.NoCRDs {
		c.Kube.Resources = []*metav1.APIResourceList{{
			GroupVersion: "multicluster.x-k8s.io/v1alpha1", APIResources: []metav1.APIResource{{Name: "serviceimports"}},
		}}
	}
	c.Kube.PrependReactor("create", "subjectaccessreviews", c.review)
	c.Kube.PrependReactor("create", "selfsubjectaccessreviews", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, &authorizationv1.SelfSubjectAccessReview{Status: authorizationv1.SubjectAccessReviewStatus{Allowed: !c.NoPortForward}}, nil
	})
	c.Kube.PrependReactor("patch", "deployments", func(clienttesting.Action) (bool, runtime.Object, error) {
		if !c.IgnoresRestart {
			c.running = c.Corefile()
		}
		return false, nil, nil
	})
}

// Cluster returns the connection to the cluster, under context cls1.
func (c *CoreDNS) Cluster() *session.Cluster {
	return &session.Cluster{
		Context: "cls1", Kube: c.Kube, ForwardPort: c.forwardPort,
		Now: func() time.Time { return time.Unix(0, 0) }, PollInterval: time.Millisecond,
	}
}

// review allows what a ClusterRole bound to CoreDNS's service account allows.
func (c *CoreDNS) review(action clienttesting.Action) (bool, runtime.Object, error) {
	if c.NoReviews {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "subjectaccessreviews"}, "", errors.New("no"))
	}
	review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview).DeepCopy()
	if review.Spec.User == "system:serviceaccount:"+session.DefaultNamespace+":"+session.ManagerName {
		review.Status.Allowed = c.DeniedResource != "*" && review.Spec.ResourceAttributes.Resource != c.DeniedResource
		return true, review, nil
	}
	_, roleErr := c.Kube.Tracker().Get(rbacv1.SchemeGroupVersion.WithResource("clusterroles"), "", coredns.RoleName)
	binding, bindingErr := c.Kube.Tracker().Get(rbacv1.SchemeGroupVersion.WithResource("clusterrolebindings"), "", coredns.RoleName)
	review.Status.Allowed = roleErr == nil && bindingErr == nil &&
		review.Spec.User == "system:serviceaccount:kube-system:"+binding.(*rbacv1.ClusterRoleBinding).Subjects[0].Name
	return true, review, nil
}

// Corefile returns the Corefile in the ConfigMap.
func (c *CoreDNS) Corefile() string {
	config, err := c.Kube.Tracker().Get(corev1.SchemeGroupVersion.WithResource("configmaps"), "kube-system", "coredns")
	if err != nil {
		return err.Error()
	}
	return config.(*corev1.ConfigMap).Data["Corefile"]
}

// forwardPort connects to the DNS server of a pod.
func (c *CoreDNS) forwardPort(_ context.Context, pod *corev1.Pod, _ int32, use func(io.ReadWriter) error) error {
	if c.QueryError != nil {
		return c.QueryError
	}
	found, err := coredns.Inspect(c.running, "")
	if err != nil {
		return err
	}
	return pipe(use, func(conn io.ReadWriter) error {
		return AnswerQuery(conn, found.State == coredns.Enabled && !slices.Contains(c.SilentPods, pod.Name))
	})
}

// AnswerQuery serves one DNS query over TCP. It answers with a TXT record, or that the name does not exist.
func AnswerQuery(conn io.ReadWriter, exists bool) error {
	var length uint16
	if err := binary.Read(conn, binary.BigEndian, &length); err != nil {
		return err
	}
	query := make([]byte, length)
	if _, err := io.ReadFull(conn, query); err != nil {
		return err
	}
	var m dnsmessage.Message
	if err := m.Unpack(query); err != nil || len(m.Questions) != 1 {
		return fmt.Errorf("unpacking the query %+v: %w", m.Questions, err)
	}
	m.Response, m.RCode = true, dnsmessage.RCodeNameError
	if exists {
		m.RCode, m.Answers = dnsmessage.RCodeSuccess, []dnsmessage.Resource{{
			Header: dnsmessage.ResourceHeader{Name: m.Questions[0].Name, Type: dnsmessage.TypeTXT, Class: dnsmessage.ClassINET},
			Body:   &dnsmessage.TXTResource{TXT: []string{"1.0.0"}},
		}}
	}
	packed, err := m.Pack()
	if err != nil {
		return err
	}
	_, err = conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(packed))), packed...))
	return err
}

// Writes lists the writes since the last call, one line each, without access reviews.
func (c *CoreDNS) Writes() string {
	var out strings.Builder
	for _, action := range c.Kube.Actions() {
		resource := action.GetResource().Resource
		if verb := action.GetVerb(); verb != "get" && verb != "list" && !strings.HasSuffix(resource, "reviews") {
			fmt.Fprintf(&out, "~ %s %s\n", verb, resource)
		}
	}
	c.Kube.ClearActions()
	return out.String()
}
