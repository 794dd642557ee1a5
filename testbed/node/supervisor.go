package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/testbed/cluster"
)

// restartDelay keeps a program that fails at start from using all CPU.
const restartDelay = time.Second

// supervisor starts the node's processes when their prerequisites are met, and restarts them when
// they end. As the first process of the PID namespace it also inherits orphans (containerd's shims,
// for instance) and reaps them.
type supervisor struct {
	spec cluster.NodeSpec

	mu      sync.Mutex
	running map[int]chan<- bool // by PID: receives whether the process ended well
	done    map[string]chan struct{}
}

func newSupervisor(spec cluster.NodeSpec) *supervisor {
	s := &supervisor{spec: spec, running: map[int]chan<- bool{}, done: map[string]chan struct{}{}}
	for _, p := range spec.Processes {
		s.done[p.Name] = make(chan struct{})
	}
	return s
}

// run never returns unless the processes cannot even be prepared.
func (s *supervisor) run() error {
	gates, err := newGates(s.spec.Files[cluster.CAFile], s.done)
	if err != nil {
		return err
	}
	for _, p := range s.spec.Processes {
		log, err := os.OpenFile(filepath.Join(s.spec.LogDir, p.Name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			return fmt.Errorf("opening the log of %s: %w", p.Name, err)
		}
		go s.runProcess(p, log, gates)
	}
	for {
		s.reap()
	}
}

// runProcess runs a process and restarts it until the node stops; a process that runs once ends
// when it succeeds.
func (s *supervisor) runProcess(p cluster.Process, log *os.File, gates *gates) {
	defer log.Close()
	for _, g := range p.After {
		gates.wait(g)
	}
	for {
		ended, err := s.start(p, log)
		if err != nil {
			s.logf("starting %s: %v", p.Name, err)
		} else {
			s.logf("started %s", p.Name)
			well := <-ended
			if p.Once && well {
				close(s.done[p.Name])
				return
			}
			s.logf("%s ended: see %s", p.Name, log.Name())
		}
		time.Sleep(restartDelay)
	}
}

// start holds the lock until the PID is registered, so that the process is not reaped before it is
// known.
func (s *supervisor) start(p cluster.Process, log *os.File) (<-chan bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	process, err := os.StartProcess(p.Args[0], p.Args, &os.ProcAttr{
		Dir:   "/",
		Env:   append(os.Environ(), p.Env...),
		Files: []*os.File{null, log, log},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return nil, err
	}
	ended := make(chan bool, 1)
	s.running[process.Pid] = ended
	return ended, process.Release()
}

// reap waits for any child to end and notifies the goroutine that runs it.
func (s *supervisor) reap() {
	var status syscall.WaitStatus
	pid, err := syscall.Wait4(-1, &status, 0, nil)
	if errors.Is(err, syscall.ECHILD) { // nothing runs at the moment
		time.Sleep(pollInterval)
	}
	if err != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if ended, ok := s.running[pid]; ok {
		delete(s.running, pid)
		ended <- status.Exited() && status.ExitStatus() == 0
	}
}

func (s *supervisor) logf(format string, args ...any) {
	fmt.Printf("%s "+format+"\n", append([]any{time.Now().UTC().Format("15:04:05.000")}, args...)...)
}
