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
		name        string
		pods        []corev1.Pod
		holder      *string
		want        string
		wantProblem string
	}{
		{name: "the Lease has a holder", pods: []corev1.Pod{readyPod("a"), readyPod("b")}, holder: ptr.To("b_1234-5678"), want: "b"},
		{name: "the holder is not ready", pods: []corev1.Pod{readyPod("a"), unreadyPod("b")}, holder: ptr.To("b_1234"), want: "b"},
		{name: "the holder does not exist", pods: []corev1.Pod{unreadyPod("a"), readyPod("b")}, holder: ptr.To("c_1234"), want: "b"},
		{name: "no Lease", pods: []corev1.Pod{terminating, readyPod("b")}, want: "b"},
		{name: "the Lease was released", pods: []corev1.Pod{readyPod("a")}, holder: ptr.To(""), want: "a"},
		{name: "no pod is ready", pods: []corev1.Pod{unreadyPod("a")}, wantProblem: "no pod is ready, for example a: containers with unready status"},
		{name: "no pod", wantProblem: "no pod found"},
	}
	for _, tt := range tests {
		pod, problem := chooseLeader(tt.pods, tt.holder)
		got := ""
		if pod != nil {
			got = pod.Name
		}
		if got != tt.want || !strings.HasPrefix(problem, tt.wantProblem) || (problem == "") != (tt.wantProblem == "") {
			t.Errorf("%s: %q, %q; want %q, %q", tt.name, got, problem, tt.want, tt.wantProblem)
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

func TestLastMessage(t *testing.T) {
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
		"failed":                {corev1.ContainerStatus{State: ended("start\n--aws-region: must be a Region\n", "Error", 2)}, "--aws-region: must be a Region"},
		"waits after a failure": {corev1.ContainerStatus{State: waits, LastTerminationState: ended("a bad flag", "Error", 2)}, "a bad flag"},
		"out of memory":         {corev1.ContainerStatus{State: waits, LastTerminationState: ended("", "OOMKilled", 137)}, "OOMKilled"},
		"panic":                 {corev1.ContainerStatus{State: waits, LastTerminationState: ended("x\npanic: nil map\n\ngoroutine 1:\nmain()", "Error", 2)}, "panic: nil map"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			pods := []corev1.Pod{{}, {ObjectMeta: metav1.ObjectMeta{Name: "b"}, Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{tt.status}}}}
			want := ""
			if tt.want != "" {
				want = "the last message of pod b: " + tt.want
			}
			if got := LastMessage(pods); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}
