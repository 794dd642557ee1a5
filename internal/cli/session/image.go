package session

import (
	"context"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ImageProblem returns the reason for which a node cannot pull the image for one of the pods of the
// latest version of a Deployment, "" if there is none.
func (k *Cluster) ImageProblem(ctx context.Context, d *appsv1.Deployment, labels client.MatchingLabels, image string) (string, error) {
	pods, err := k.listRolledOutPods(ctx, d, labels)
	return imageProblem(pods, image), err
}

// revisionAnnotation numbers the versions of a Deployment's pods. The Deployment has the number of
// the latest one, and each ReplicaSet its own.
const revisionAnnotation = "deployment.kubernetes.io/revision"

// listRolledOutPods returns the pods of the latest version of a Deployment, whose ReplicaSets and
// pods have the labels. Those of a previous version may have the same image, and fail to pull it
// until they are deleted although it exists by now.
func (k *Cluster) listRolledOutPods(ctx context.Context, d *appsv1.Deployment, labels client.MatchingLabels) ([]corev1.Pod, error) {
	if d.Status.ObservedGeneration < d.Generation {
		return nil, nil // there is no ReplicaSet of the latest version yet
	}
	var sets appsv1.ReplicaSetList
	if err := k.List(ctx, d.Namespace, &sets, labels); err != nil {
		return nil, fmt.Errorf("listing the ReplicaSets of Deployment %s/%s: %w", d.Namespace, d.Name, err)
	}
	latest := slices.IndexFunc(sets.Items, func(r appsv1.ReplicaSet) bool {
		return metav1.IsControlledBy(&r, d) && r.Annotations[revisionAnnotation] == d.Annotations[revisionAnnotation]
	})
	if latest < 0 {
		return nil, nil
	}
	var pods corev1.PodList
	if err := k.List(ctx, d.Namespace, &pods, labels); err != nil {
		return nil, fmt.Errorf("listing the pods of Deployment %s/%s: %w", d.Namespace, d.Name, err)
	}
	return slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool {
		return p.DeletionTimestamp != nil || !metav1.IsControlledBy(&p, &sets.Items[latest])
	}), nil
}

// imageFailures are the reasons for which a container waits when the kubelet cannot get its image.
var imageFailures = []string{"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"}

// imageProblem returns the reason for which a node cannot pull the image for one of the pods, "" if
// there is none.
func imageProblem(pods []corev1.Pod, image string) string {
	for _, pod := range pods {
		var names []string // of the containers with that image
		for _, c := range pod.Spec.Containers {
			if c.Image == image {
				names = append(names, c.Name)
			}
		}
		for _, c := range pod.Status.ContainerStatuses {
			if w := c.State.Waiting; w != nil && slices.Contains(names, c.Name) && slices.Contains(imageFailures, w.Reason) {
				return strings.TrimSuffix(w.Reason+": "+w.Message, ": ")
			}
		}
	}
	return ""
}
