package cloudmaplocal

import (
	"cmp"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// A burst of registrations is written once. 30,000 instances are 20 MB and a second of work on a
// busy core (measured), so the pause between two writes is at least saveInterval and at least
// savePause times the duration of the last write: saving never uses more than a tenth of a core. A
// crash can lose the changes of one pause; Close loses nothing.
const (
	saveInterval = time.Second
	savePause    = 9
)

// saver writes the state file in the background.
type saver struct {
	path     string
	snapshot func() ([]byte, error)
	log      *slog.Logger
	saving   sync.Mutex    // held by save: an older snapshot must not replace a newer one
	dirty    chan struct{} // holds one mark at most
	stop     chan struct{}
	stopped  chan error
}

func startSaver(path string, snapshot func() ([]byte, error), log *slog.Logger) *saver {
	s := &saver{
		path: path, snapshot: snapshot, log: log,
		dirty: make(chan struct{}, 1), stop: make(chan struct{}), stopped: make(chan error, 1),
	}
	go s.run()
	return s
}

// markDirty requests a save.
func (s *saver) markDirty() {
	select {
	case s.dirty <- struct{}{}:
	default: // marked already
	}
}

// close saves a last time and stops the saver.
func (s *saver) close() error {
	close(s.stop)
	return <-s.stopped
}

func (s *saver) run() {
	for {
		select {
		case <-s.stop:
			s.stopped <- s.save()
			return
		case <-s.dirty:
		}
		start := time.Now()
		if err := s.save(); err != nil {
			s.log.Error("Failed to save the state file, retrying", "file", s.path, "error", err)
			s.markDirty()
		}
		select {
		case <-s.stop:
			s.stopped <- s.save()
			return
		case <-time.After(max(saveInterval, savePause*time.Since(start))):
		}
	}
}

// save replaces the file atomically: a reader, or a crash, finds the old or the new content.
func (s *saver) save() error {
	s.saving.Lock()
	defer s.saving.Unlock()
	raw, err := s.snapshot()
	if err != nil {
		return fmt.Errorf("encoding the state: %w", err)
	}
	if err := replaceFile(s.path, raw); err != nil {
		return fmt.Errorf("writing the state file %s: %w", s.path, err)
	}
	return nil
}

func replaceFile(path string, content []byte) (err error) {
	tmp, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.tmp")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(tmp.Name())
		}
	}()
	_, err = tmp.Write(content)
	if err := cmp.Or(err, tmp.Sync(), tmp.Close()); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), path)
}
