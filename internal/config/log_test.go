package config

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	uberzap "go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
)

// fixedClock is the time that log lines bear.
type fixedClock struct {
	zapcore.Clock
	now time.Time
}

func (c *fixedClock) Now() time.Time { return c.now }

func TestLogRepeats(t *testing.T) {
	const many = 50
	for name, test := range map[string]struct {
		level                    string
		wantErrors, wantOther    int // of one message, and of another
		wantNextMinute, wantInfo int
	}{
		"info":  {level: "info", wantErrors: errorsPerMinute, wantOther: 1, wantNextMinute: errorsPerMinute, wantInfo: many},
		"error": {level: "error", wantErrors: errorsPerMinute, wantOther: 1, wantNextMinute: errorsPerMinute},
		"debug": {level: "debug", wantErrors: many, wantOther: 1, wantNextMinute: many, wantInfo: many},
	} {
		for _, format := range logFormats {
			t.Run(name+" "+format, func(t *testing.T) {
				var out bytes.Buffer
				clock := &fixedClock{now: time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)}
				options := (&Log{Level: test.level, Format: format}).options(&out)
				log := zap.New(append(options, zap.RawZapOpts(uberzap.WithClock(clock)))...)
				// controller-runtime makes a logger with values for each reconcile: they count together.
				repeat := func() {
					for i := range many {
						log.WithValues("object", i).Error(errors.New("no"), "Reconciler error")
						log.WithName("export").Info("Exported", "object", i)
					}
				}
				repeat()
				log.Error(nil, "Failed to watch")
				check(t, &out, "Reconciler error", test.wantErrors)
				check(t, &out, "Failed to watch", test.wantOther)
				check(t, &out, "Exported", test.wantInfo)
				out.Reset()
				clock.now = clock.now.Add(time.Minute + time.Second)
				repeat()
				check(t, &out, "Reconciler error", test.wantNextMinute)
			})
		}
	}
}

func check(t *testing.T, out *bytes.Buffer, message string, want int) {
	t.Helper()
	if got := strings.Count(out.String(), message); got != want {
		t.Errorf("%d lines %q, want %d", got, message, want)
	}
}

// TestLogLevels: V(1) is for debug only.
func TestLogLevels(t *testing.T) {
	for level, want := range map[string]string{"debug": "detail info error", "info": "info error", "error": "error"} {
		var out bytes.Buffer
		log := (&Log{Level: level, Format: "json"}).Logger(&out)
		log.V(1).Info("detail")
		log.Info("info")
		log.Error(nil, "error")
		var got []string
		for line := range strings.Lines(out.String()) {
			_, rest, _ := strings.Cut(line, `"msg":"`)
			message, _, _ := strings.Cut(rest, `"`)
			got = append(got, message)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %q, want %q", level, got, want)
		}
	}
}
