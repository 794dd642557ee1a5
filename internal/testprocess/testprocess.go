// Package testprocess ends the programs that a test started, such as etcd and kube-apiserver, when
// the test binary dies without its cleanup: on a timeout, a panic, or SIGKILL.
package testprocess

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// script waits for the end of its input, which is the death of the test binary, and kills the
// processes that inherited the mark. Processes with another mark, of other test binaries, are left
// alone.
const script = `cat >/dev/null
for file in $(grep -lzxF "$0" /proc/[0-9]*/environ 2>/dev/null); do
  pid=${file#/proc/}
  kill -9 "${pid%/environ}"
done`

// input is the input of the shell. It stays open until this process dies. Without a reference to
// it, the garbage collector would close it, and the shell would kill the children of a test that
// still runs.
var input io.WriteCloser //nolint:unused // the reference is its use

// EndChildren starts a shell that kills all further children of this process, and their children,
// when this process dies. Call it before the first of them is started. Further calls do nothing.
var EndChildren = sync.OnceValue(func() error {
	mark, value := "CLOUD_MAP_MCS_TEST_PROCESS", fmt.Sprintf("%d-%d", os.Getpid(), time.Now().UnixNano())
	cmd := exec.Command("sh", "-c", script, mark+"="+value)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C in a terminal must not stop it
	var err error
	if input, err = cmd.StdinPipe(); err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting the shell that ends the children of the test: %w", err)
	}
	return os.Setenv(mark, value)
})
