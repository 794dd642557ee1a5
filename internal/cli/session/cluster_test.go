package session

import (
	"context"
	"errors"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// A command that the user interrupts has failed. One whose time is over has not.
func TestPoll(t *testing.T) {
	k := &Cluster{PollInterval: time.Millisecond}
	never := func() (bool, error) { return false, nil }
	if err := k.Poll(t.Context(), 2*time.Millisecond, never); !wait.Interrupted(err) {
		t.Errorf("after the timeout: %v, want the error of a timeout", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := k.Poll(ctx, time.Minute, never); err == nil || wait.Interrupted(err) {
		t.Errorf("after Ctrl-C: %v, want another error than that of a timeout", err)
	}
}

func TestJoinErrors(t *testing.T) {
	clusters := []*Cluster{{Context: "cls1"}, {Context: "cls2"}, {Context: "cls3"}}
	pending, failed := Incompletef("pending"), errors.New("failed")
	for name, tt := range map[string]struct {
		errs           []error
		want           string
		wantIncomplete bool
	}{
		"none":               {make([]error, 3), "", false},
		"incomplete":         {[]error{nil, pending, pending}, "cls2: pending\ncls3: pending", true},
		"failed":             {[]error{failed, nil, nil}, "cls1: failed", false},
		"failed, incomplete": {[]error{failed, pending, nil}, "cls1: failed\ncls2: pending", false},
	} {
		err := JoinErrors(clusters, tt.errs)
		text := ""
		if err != nil {
			text = err.Error()
		}
		if text != tt.want || errors.As(err, new(IncompleteError)) != tt.wantIncomplete {
			t.Errorf("%s: %q, incomplete %t; want %q, %t", name, text, errors.As(err, new(IncompleteError)), tt.want, tt.wantIncomplete)
		}
	}
}
