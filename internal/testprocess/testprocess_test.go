package testprocess

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestHelper is not a test: TestEndChildren runs it as a process that starts a child and then kills
// itself.
func TestHelper(t *testing.T) {
	if os.Getenv("TESTPROCESS_HELPER") == "" {
		t.Skip("started by TestEndChildren")
	}
	if err := EndChildren(); err != nil {
		t.Fatal(err)
	}
	child := exec.Command("sleep", "600")
	child.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // as envtest starts its programs
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan error, 1)
	go func() { exited <- child.Wait() }()
	for range 3 {
		runtime.GC() // which closes files that nothing refers to
	}
	select {
	case err := <-exited:
		t.Fatalf("the child ended before its parent: %v", err)
	case <-time.After(time.Second):
	}
	fmt.Printf("child %d\n", child.Process.Pid)
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
}

func TestEndChildren(t *testing.T) {
	helper := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestHelper$")
	helper.Env = append(os.Environ(), "TESTPROCESS_HELPER=1")
	out, _ := helper.Output() // it kills itself
	_, text, found := strings.Cut(string(out), "child ")
	pid, err := strconv.Atoi(strings.TrimSpace(text))
	if !found || err != nil {
		t.Fatalf("the helper printed %q", out)
	}
	for deadline := time.Now().Add(20 * time.Second); isRunning(pid); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
			t.Fatal("the child still runs 20 s after the death of its parent")
		}
	}
}

func isRunning(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(stat), ") Z ")
}
