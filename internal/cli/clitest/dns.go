package clitest

import (
	"context"
	"encoding/binary"
	"encoding/json"
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
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlfake "sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

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

// CoreDNS is a cluster with a stock CoreDNS. Its pods answer according to the Corefile, which they
// read when they restart.
type CoreDNS struct {
	Kube       *fake.Clientset
	Deployment *appsv1.Deployment
	Config     *corev1.ConfigMap
	// Objects are further objects of the cluster.
	Objects []runtime.Object

	// Served are the versions of ServiceImport that the API server serves.
	Served                   []string
	NoReviews, NoPortForward bool
	// QueryError is the error of every query.
	QueryError error
	// SilentPods are pods that never answer for clusterset.local.
	SilentPods []string
	// IgnoresRestart makes the pods keep their Corefile.
	IgnoresRestart bool
	// DeniedResource is the resource that the controller may not use; "*" is all.
	DeniedResource string
	// BesideImageProblem is the reason for which the nodes cannot pull the image of the CoreDNS
	// beside the cluster's own, or "".
	BesideImageProblem string
	// BesideObjects are objects with the names of the CoreDNS beside the cluster's own.
	BesideObjects []client.Object
	// OtherServerAnswers makes the pods of a DNS server other than CoreDNS answer for
	// clusterset.local.
	OtherServerAnswers bool

	client  client.Client // has the objects of the CoreDNS beside the cluster's own
	writes  []string      // with client
	running []string      // the Corefile of the running pods, and the server block that they import
}

// BesideIPs are the IPs of the Service of the CoreDNS beside the cluster's own.
var BesideIPs = []string{"10.96.0.77", "fd00:96::77"}

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
		Served: []string{"v1alpha1", "v1beta1"},
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
	c.client = interceptor.NewClient(ctrlfake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(c.BesideObjects...).Build(), interceptor.Funcs{
		Apply: c.apply, Delete: c.delete,
	})
	c.running = []string{c.Corefile(), c.Custom()}
	for _, version := range c.Served {
		c.Kube.Resources = append(c.Kube.Resources, apiResources("multicluster.x-k8s.io/"+version, "serviceimports"))
	}
	c.Kube.PrependReactor("create", "subjectaccessreviews", c.review)
	c.Kube.PrependReactor("create", "selfsubjectaccessreviews", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, &authorizationv1.SelfSubjectAccessReview{Status: authorizationv1.SubjectAccessReviewStatus{Allowed: !c.NoPortForward}}, nil
	})
	c.Kube.PrependReactor("patch", "deployments", func(clienttesting.Action) (bool, runtime.Object, error) {
		if !c.IgnoresRestart {
			c.running = []string{c.Corefile(), c.Custom()}
		}
		return false, nil, nil
	})
}

// apply applies an object of the CoreDNS beside the cluster's own. A Service gets its IPs, and a
// Deployment its pods.
func (c *CoreDNS) apply(ctx context.Context, w client.WithWatch, obj runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
	if err := w.Apply(ctx, obj, opts...); err != nil {
		return err
	}
	text, err := json.Marshal(obj)
	if err != nil {
		return err
	}
	var applied metav1.PartialObjectMetadata
	if err := json.Unmarshal(text, &applied); err != nil {
		return err
	}
	c.writes = append(c.writes, "apply "+applied.Kind)
	key := client.ObjectKeyFromObject(&applied)
	switch applied.Kind {
	case "Service":
		var service corev1.Service
		if err := w.Get(ctx, key, &service); err != nil {
			return err
		}
		service.Spec.ClusterIP, service.Spec.ClusterIPs = BesideIPs[0], BesideIPs
		return w.Update(ctx, &service)
	case "Deployment":
		return c.rollOut(ctx, w, key)
	}
	return nil
}

// rollOut starts the pods of the CoreDNS beside the cluster's own, or makes them wait for their
// image.
func (c *CoreDNS) rollOut(ctx context.Context, w client.WithWatch, key client.ObjectKey) error {
	var d appsv1.Deployment
	if err := w.Get(ctx, key, &d); err != nil {
		return err
	}
	container := d.Spec.Template.Spec.Containers[0]
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name + "-1", Labels: coredns.BesideLabels()}}
	pod.Spec.Containers = []corev1.Container{container}
	ready := corev1.ConditionTrue
	d.Status = appsv1.DeploymentStatus{Replicas: 2, UpdatedReplicas: 2, AvailableReplicas: 2}
	if c.BesideImageProblem != "" {
		ready, d.Status.AvailableReplicas = corev1.ConditionFalse, 0
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
			Name: container.Name, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: c.BesideImageProblem}},
		}}
	}
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}
	set := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{
		Namespace: key.Namespace, Name: key.Name, UID: "uid-set", Labels: coredns.BesideLabels(),
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: key.Name, UID: d.UID, Controller: new(true)}},
	}}
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: key.Name, UID: set.UID, Controller: new(true)}}
	for _, object := range []client.Object{set, pod.DeepCopy()} {
		if err := w.Create(ctx, object); err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	pods := corev1.SchemeGroupVersion.WithResource("pods")
	if err := c.Kube.Tracker().Create(pods, pod, key.Namespace); apierrors.IsAlreadyExists(err) {
		if err := c.Kube.Tracker().Update(pods, pod, key.Namespace); err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	return w.Status().Update(ctx, &d)
}

// delete deletes an object of the CoreDNS beside the cluster's own.
func (c *CoreDNS) delete(ctx context.Context, w client.WithWatch, obj client.Object, opts ...client.DeleteOption) error {
	kind := obj.GetObjectKind().GroupVersionKind().Kind
	c.writes = append(c.writes, "delete "+kind)
	if kind == "Deployment" {
		if err := c.Kube.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), obj.GetNamespace(), obj.GetName()+"-1"); err != nil {
			return err
		}
	}
	return w.Delete(ctx, obj, opts...)
}

// Cluster returns the connection to the cluster, under context cls1.
func (c *CoreDNS) Cluster() *session.Cluster {
	return &session.Cluster{
		Context: "cls1", Kube: c.Kube, ForwardPort: c.forwardPort, Objects: func() (client.Client, error) { return c.client, nil },
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
	if review.Spec.User == "system:serviceaccount:kube-system:"+coredns.BesideName {
		err := c.client.Get(context.Background(), client.ObjectKey{Name: coredns.BesideName}, &rbacv1.ClusterRoleBinding{})
		review.Status.Allowed = err == nil
		return true, review, nil
	}
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
	answers, err := c.answers(pod)
	if err != nil {
		return err
	}
	return pipe(use, func(conn io.ReadWriter) error {
		return AnswerQuery(conn, answers && !slices.Contains(c.SilentPods, pod.Name))
	})
}

// answers reports whether a pod answers for clusterset.local: from ServiceImports, or from the
// CoreDNS to which it forwards.
func (c *CoreDNS) answers(pod *corev1.Pod) (bool, error) {
	if pod.Labels["app.kubernetes.io/name"] == coredns.BesideName {
		return true, nil
	}
	if c.Deployment.Name != "coredns" {
		return c.OtherServerAnswers, nil
	}
	found, err := coredns.Inspect(c.running[0], "")
	if err != nil || found.State == coredns.Enabled {
		return true, err
	}
	imported, err := coredns.Upstreams(c.running[1])
	return slices.Equal(found.Forward, BesideIPs) || slices.Equal(imported, BesideIPs), err
}

// Custom returns the server block for clusterset.local in ConfigMap coredns-custom, or "".
func (c *CoreDNS) Custom() string {
	config, err := c.Kube.Tracker().Get(corev1.SchemeGroupVersion.WithResource("configmaps"), "kube-system", coredns.CustomName)
	if err != nil {
		return ""
	}
	return config.(*corev1.ConfigMap).Data[coredns.CustomKey]
}

// AnswerQuery serves one DNS query over TCP. It answers with a TXT record, or that the name does
// not exist.
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
	for _, line := range c.writes {
		fmt.Fprintf(&out, "~ %s\n", line)
	}
	c.writes = nil
	return out.String()
}
