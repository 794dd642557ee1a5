package session

import (
	"bufio"
	"net"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func TestChooseLeader(t *testing.T) {
	readyPod := func(name string) corev1.Pod {
		return corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Status:     corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
		}
	}
	unreadyPod := func(name string) corev1.Pod {
		pod := readyPod(name)
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse, Message: "containers with unready status"}}
		return pod
	}
	terminating := readyPod("terminating")
	terminating.DeletionTimestamp = new(metav1.Now())
	tests := []struct {
		name   string
		pods   []corev1.Pod
		holder *string
		want   string
	}{
		{name: "the Lease has a holder", pods: []corev1.Pod{readyPod("a"), readyPod("b")}, holder: ptr.To("b_1234-5678"), want: "b"},
		{name: "the holder is not ready", pods: []corev1.Pod{readyPod("a"), unreadyPod("b")}, holder: ptr.To("b_1234"), want: "b"},
		{name: "the holder does not exist", pods: []corev1.Pod{unreadyPod("a"), readyPod("b")}, holder: ptr.To("c_1234"), want: "b"},
		{name: "no Lease", pods: []corev1.Pod{terminating, readyPod("b")}, want: "b"},
		{name: "the Lease was released", pods: []corev1.Pod{readyPod("a")}, holder: ptr.To(""), want: "a"},
		{name: "no pod is ready", pods: []corev1.Pod{unreadyPod("a")}},
		{name: "no pod"},
	}
	for _, tt := range tests {
		got := ""
		if pod := chooseLeader(tt.pods, tt.holder); pod != nil {
			got = pod.Name
		}
		if got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestDescribePods(t *testing.T) {
	waiting := func(reason, message string) corev1.ContainerStatus {
		return corev1.ContainerStatus{Name: "manager", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}}
	}
	after := func(c corev1.ContainerStatus, code int32, reason, message string) corev1.ContainerStatus {
		c.RestartCount, c.LastTerminationState.Terminated = 3, &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason, Message: message}
		return c
	}
	backOff := waiting("CrashLoopBackOff", "back-off 40s")
	running := corev1.ContainerStatus{Name: "manager", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}
	for name, tt := range map[string]struct {
		container corev1.ContainerStatus
		condition corev1.PodCondition
		state     string
		detail    string
	}{
		"a bad flag":         {after(backOff, 2, "Error", "usage\nunknown flag: --x\n"), corev1.PodCondition{}, "crashing", "pod a: container manager has ended 3 times, with exit code 2: unknown flag: --x"},
		"out of memory":      {after(backOff, 137, "OOMKilled", ""), corev1.PodCondition{}, "crashing", "pod a: container manager has ended 3 times, with exit code 137 (OOMKilled)"},
		"it runs again":      {after(running, 2, "Error", ""), corev1.PodCondition{Status: corev1.ConditionFalse, Message: "not ready"}, "starting", "pod a is not ready: not ready; pod a: container manager has ended 3 times, with exit code 2"},
		"no image":           {waiting("ErrImagePull", "no such image"), corev1.PodCondition{}, "not started", "pod a: ErrImagePull: no such image"},
		"it is created":      {waiting("ContainerCreating", ""), corev1.PodCondition{}, "starting", "pod a is not ready: ContainerCreating"},
		"no node has memory": {corev1.ContainerStatus{}, corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/2 nodes"}, "not started", "pod a: it has no node: 0/2 nodes"},
	} {
		pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Status: corev1.PodStatus{
			ContainerStatuses: []corev1.ContainerStatus{tt.container}, Conditions: []corev1.PodCondition{tt.condition},
		}}
		other := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "b"}}
		if got := describePods("kubectl", "cls1", []corev1.Pod{pod, other}); got.State != tt.state || got.Detail != tt.detail || got.Remedy == "" {
			t.Errorf("%s: %+v, want %q, %q", name, got, tt.state, tt.detail)
		}
	}
}

func TestReadAll(t *testing.T) {
	for text, wantErr := range map[string]string{"": "", "1234": "", "12345": "more than 4 bytes: the pod is not the controller"} {
		got, err := readAll(strings.NewReader(text), 4)
		if wantErr == "" && (err != nil || string(got) != text) || wantErr != "" && (err == nil || !strings.Contains(err.Error(), wantErr)) {
			t.Errorf("%q: %q, %v, want error %q", text, got, err, wantErr)
		}
	}
}

func TestHTTPGet(t *testing.T) {
	tests := []struct {
		name, answer, want, wantErr string
	}{
		{name: "found", answer: "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", want: "{}"},
		{name: "no Content-Length", answer: "HTTP/1.1 200 OK\r\n\r\n{}", want: "{}"},
		{name: "not available", answer: "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 13\r\n\r\nnot read yet\n", wantErr: "not read yet"},
		{name: "truncated body", answer: "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}", wantErr: "unexpected EOF"},
		{name: "closed connection", wantErr: "EOF"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			client, server := net.Pipe()
			defer client.Close()
			go func() {
				defer server.Close()
				req, err := http.ReadRequest(bufio.NewReader(server))
				if err != nil || req.Method != http.MethodGet || req.URL.Path != "/status" {
					t.Errorf("request = %+v, %v", req, err)
				}
				_, _ = server.Write([]byte(tt.answer))
			}()
			got, err := httpGet(t.Context(), client, "/status")
			if string(got) != tt.want || (err == nil) != (tt.wantErr == "") || err != nil && !strings.Contains(err.Error(), tt.wantErr) {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
}

func TestLastFailure(t *testing.T) {
	ended := func(message, reason string, code int32) corev1.ContainerState {
		return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: message, Reason: reason, ExitCode: code}}
	}
	waits := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
	tests := map[string]struct {
		status corev1.ContainerStatus
		want   string
	}{
		"works after a failure": {corev1.ContainerStatus{Ready: true, LastTerminationState: ended("x", "Error", 1)}, ""},
		"starts":                {corev1.ContainerStatus{}, ""},
		"stopped":               {corev1.ContainerStatus{State: ended("bye", "Completed", 0)}, ""},
		"failed":                {corev1.ContainerStatus{State: ended("start\n--aws-region: must be a Region\n", "Error", 2)}, "exit code 2: --aws-region: must be a Region"},
		"waits after a failure": {corev1.ContainerStatus{State: waits, LastTerminationState: ended("a bad flag", "Error", 2)}, "exit code 2: a bad flag"},
		"out of memory":         {corev1.ContainerStatus{State: waits, LastTerminationState: ended("", "OOMKilled", 137)}, "exit code 137 (OOMKilled)"},
		"panic":                 {corev1.ContainerStatus{State: waits, LastTerminationState: ended("x\npanic: nil map\n\ngoroutine 1:\nmain()", "Error", 2)}, "exit code 2: panic: nil map"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			tt.status.Name = "manager"
			pods := []corev1.Pod{{}, {ObjectMeta: metav1.ObjectMeta{Name: "b"}, Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{tt.status}}}}
			want := ""
			if tt.want != "" {
				want = "pod b: container manager has ended 1 times, with " + tt.want
			}
			if got := LastFailure(pods); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}
