package session

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestImageProblem(t *testing.T) {
	const image = "example.com/mcs:v1"
	// pod returns a pod with a sidecar, whose container manager waits for a reason, or runs if it
	// is "".
	pod := func(image, reason, message string) corev1.Pod {
		manager := corev1.ContainerStatus{Name: "manager"}
		if reason != "" {
			manager.State.Waiting = &corev1.ContainerStateWaiting{Reason: reason, Message: message}
		}
		return corev1.Pod{
			Spec:   corev1.PodSpec{Containers: []corev1.Container{{Name: "manager", Image: image}, {Name: "a-sidecar", Image: "sidecar"}}},
			Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "a-sidecar"}, manager}},
		}
	}
	tests := map[string]struct {
		pods []corev1.Pod
		want string
	}{
		"no pod":                     {nil, ""},
		"running":                    {[]corev1.Pod{pod(image, "", "")}, ""},
		"being created":              {[]corev1.Pod{pod(image, "ContainerCreating", "")}, ""},
		"crashing":                   {[]corev1.Pod{pod(image, "CrashLoopBackOff", "back-off 10s")}, ""},
		"not found":                  {[]corev1.Pod{pod(image, "", ""), pod(image, "ErrImagePull", "not found")}, "ErrImagePull: not found"},
		"not found, several times":   {[]corev1.Pod{pod(image, "ImagePullBackOff", "")}, "ImagePullBackOff"},
		"not a name":                 {[]corev1.Pod{pod(image, "InvalidImageName", "")}, "InvalidImageName"},
		"never pulled":               {[]corev1.Pod{pod(image, "ErrImageNeverPull", "")}, "ErrImageNeverPull"},
		"of a previous installation": {[]corev1.Pod{pod("example.com/mcs:v0", "ErrImagePull", "not found")}, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := imageProblem(tt.pods, image); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}
