package install

import (
	"slices"
	"testing"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	aboutv1beta1 "github.com/cloud-map-mcs/cloud-map-mcs-controller/api/about/v1beta1"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/clitest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/session"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/show"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/names"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
)

// commands returns the commands of this package, and of package show to see their effect.
func commands(s *session.Session) []*cobra.Command {
	return slices.Concat(Commands(s), show.Commands(s))
}

// TestSessions compares terminal sessions with testdata/<name>.txt.
func TestSessions(t *testing.T) {
	clitest.RunSessions(t, commands, []clitest.TerminalSession{
		{Name: "install", Lines: []string{
			"install --wait 0s --context cls1,cls2", "install --wait 2ms", "install now", "install -- --nonsense", "uninstall --dry-run",
		}},
		{Name: "install-no-image", Setup: func(c clitest.Clusters) {
			addUnpulled(c["cls1"], "example.com/mcs:v9", "")
		}, Lines: []string{"install --wait 1m --image example.com/mcs:v9", "install --wait 2ms --image example.com/mcs:v10"}},
		{Name: "install-image-exists-now", Setup: func(c clitest.Clusters) {
			addUnpulled(c["cls1"], "example.com/mcs:v9", "1")
		}, Lines: []string{"install --wait 2ms --image example.com/mcs:v9 -- --leave-after=2h"}},
		{Name: "install-newer-crds", Setup: func(c clitest.Clusters) {
			c["cls1"].Remove(clitest.CRD("serviceimports", "", ""))
			c["cls1"].Add(clitest.CRD("serviceimports", "v0.9.0", "0"))
		}, Lines: []string{"install --wait 0s"}},
		{Name: "install-import-policy", Setup: func(c clitest.Clusters) {
			c["cls1"].Add(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: names.Namespace, Name: policyFile.configMap()}})
		}, Lines: []string{"install --wait 0s --context cls1,cls2"}},
		{Name: "uninstall-no-pod", Setup: func(c clitest.Clusters) { c["cls1"].RemovePods() }, Lines: []string{
			"install --wait 0s", "uninstall --yes",
		}},
		{Name: "join-leave", Lines: []string{
			"join --cluster-id cls1 --clusterset-id set1", "join --cluster-id cls9 --clusterset-id set1", "join --cluster-id cls9 --clusterset-id set1 --force", "leave", "leave --yes",
			"leave -y", "join --cluster-id new --clusterset-id other --wait 0s", "join --cluster-id A.b --clusterset-id x", "join --cluster-id a",
		}},
		{Name: "leave-no-controller", Setup: func(c clitest.Clusters) { c["cls1"].RemovePods() }, Lines: []string{
			"leave --yes", "leave --yes",
		}},
		{Name: "leave-pending", Setup: func(c clitest.Clusters) { c["cls1"].IgnoresRequests = true }, Lines: []string{
			"leave --yes --wait 5ms", "leave --yes --wait 0s",
		}},
		{Name: "forget", Setup: func(c clitest.Clusters) {
			clitest.ExportWeb(c)
			c["cls2"].ControllerStatus.Members[0].Stale = true
		}, Lines: []string{
			"forget --help", "forget cls1", "forget cls2", "forget cls2 --force --yes", "forget cls1 --context cls2", "forget cls1 --context cls2 --yes",
			"forget cls1 --context cls2 --yes --wait 0s", "forget cls9 --context cls1,cls2 --yes", "forget A.b", "forget",
		}},
		{Name: "forget-no-leader", Setup: func(c clitest.Clusters) { c["cls1"].Remove(clitest.ControllerPod("manager-abc", "")) }, Lines: []string{
			"forget cls3 --yes",
		}},
		{Name: "forget-pending", Setup: func(c clitest.Clusters) { c["cls1"].IgnoresRequests = true }, Lines: []string{"forget cls3 --yes --wait 5ms"}},
		{Name: "trust", Setup: func(c clitest.Clusters) {
			m := &c["cls2"].ControllerStatus.Members[0]
			m.Key, m.RefusedKey, m.Problems = "key-of-lost-cls1", "key-of-cls1", []string{"refused the member record"}
		}, Lines: []string{
			"trust --help", "trust cls1", "trust cls1 --context cls2", "trust cls1 --context cls2 --yes", "trust cls2", "trust cls1 --key no-key --context cls2",
			"trust cls1 --key AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA --context cls1,cls2", "trust cls1 --key AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA --context cls2 --yes --wait 0s",
			"trust cls1 --context cls1,cls2 --yes", "trust A.b", "trust",
		}},
		{Name: "trust-several", Setup: func(c clitest.Clusters) {
			c["cls1"].ControllerStatus.Members = append(c["cls1"].ControllerStatus.Members, status.Member{ClusterID: "cls3", RefusedKey: "one"})
			c["cls2"].ControllerStatus.Members = append(c["cls2"].ControllerStatus.Members, status.Member{ClusterID: "cls3", Key: "old", RefusedKey: "another"})
		}, Lines: []string{"trust cls3 --context cls1,cls2"}},
		{Name: "trust-no-leader", Setup: func(c clitest.Clusters) { c["cls1"].Remove(clitest.ControllerPod("manager-abc", "")) }, Lines: []string{"trust cls3 --yes"}},
		{Name: "trust-pending", Setup: func(c clitest.Clusters) { c["cls2"].IgnoresRequests = true }, Lines: []string{"trust cls1 --context cls1,cls2 --yes --wait 5ms"}},
		{Name: "trust-refused", Setup: func(c clitest.Clusters) {
			c["cls2"].ControllerStatus.Members[0].Key, c["cls2"].RefusesKeys = "key-of-lost-cls1", true
		}, Lines: []string{
			"trust cls1 --context cls1,cls2 --yes", "trust cls3 --context cls2 --yes --key AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
		}},
		{Name: "join-duplicate-id", Setup: func(c clitest.Clusters) {
			c["cls1"].Remove(clitest.Property(aboutv1beta1.ClusterIDProperty, ""))
			c["cls1"].ControllerStatus.WriteProblem = `cluster ID "cls2" is already used by another cluster of the clusterset`
		}, Lines: []string{"join --cluster-id cls2 --clusterset-id set1", "status"}},
		{Name: "leave-leftovers", Setup: func(c clitest.Clusters) {
			c["cls1"].ControllerStatus.Leftovers = leftovers[:1]
			c["cls2"].ControllerStatus.Leftovers = leftovers
		}, Lines: []string{"leave --yes", "leave --context cls2 --yes", "uninstall --context cls2 --yes"}},
		{Name: "uninstall", Setup: func(c clitest.Clusters) {
			clitest.ExportWeb(c)
			derived := plan.PropertyWrites(mcs.Properties{mcs.PropertyRegion: "eu-west-1", mcs.PropertyZone: "eu-west-1a"}, nil)
			derived[1].Property.Spec.Value = "rack-1" // by a user, it stays
			c["cls1"].Add(derived[0].Property, derived[1].Property)
		}, Lines: []string{
			"install --wait 0s", "uninstall --dry-run", "uninstall", "uninstall --yes", "uninstall --dry-run", "uninstall --yes --crds", "get exports",
		}},
	})
}

// leftovers are a resource that an administrator deletes, and one that AWS did not delete in time.
var leftovers = []status.Leftover{
	{Resource: "service catalog.cls1 of namespace mcs.set1", Reason: "AccessDeniedException", Command: "aws servicediscovery delete-service --region eu-central-1 --id srv-1", IsProtected: true},
	{Resource: "namespace demo", Reason: "ResourceInUse", Command: "aws servicediscovery delete-namespace --region eu-central-1 --id ns-1"},
}

// addUnpulled adds a ReplicaSet of a revision of the controller's Deployment, with a pod whose node
// cannot pull the image.
func addUnpulled(c *clitest.Cluster, image, revision string) {
	controlledBy := func(kind, name string) []metav1.OwnerReference {
		return []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: kind, Name: name, Controller: new(true)}}
	}
	pod := clitest.ControllerPod("manager-new", "")
	pod.OwnerReferences = controlledBy("ReplicaSet", "manager")
	pod.Spec.Containers = []corev1.Container{{Name: "manager", Image: image}}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "manager", State: corev1.ContainerState{
		Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: image + ": not found"},
	}}}
	c.Add(pod, &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{
		Namespace: session.DefaultNamespace, Name: "manager", Labels: session.ManagerLabels(), OwnerReferences: controlledBy("Deployment", session.ManagerName),
		Annotations: map[string]string{"deployment.kubernetes.io/revision": revision},
	}})
}
