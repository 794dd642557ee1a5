package config

import (
	"bytes"
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/zapr"
	uberzap "go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
)

// fixedClock is the clock of log lines.
type fixedClock struct {
	zapcore.Clock
	now time.Time
}

func (c *fixedClock) Now() time.Time { return c.now }

func TestLogLimitsErrors(t *testing.T) {
	const many = 150 // more than controller-runtime's loggers write
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
				log := zapr.NewLogger((&Log{Level: test.level, Format: format}).logger(&out, uberzap.WithClock(clock)))
				// controller-runtime creates a logger with values for each reconcile: they share
				// their counts.
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

// TestLogLevel checks that V(1) is logged only at level debug.
func TestLogLevel(t *testing.T) {
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

// TestLogValues: a line has the values of its logger and of its ancestors, objects by their names.
func TestLogValues(t *testing.T) {
	for _, level := range []string{"debug", "info"} {
		var out bytes.Buffer
		log := (&Log{Level: level, Format: "json"}).Logger(&out).WithName("import").WithValues("object", klog.KRef("demo", "hello"))
		log, other := log.WithValues("try", 1), log.WithValues("try", 2)
		log.Info("Imported", "ports", 3)
		other.Error(errors.New("no"), "Failed to import", "service", &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: "hello"}})
		const want = `{"level":"info","ts":"T","logger":"import","msg":"Imported","object":{"name":"hello","namespace":"demo"},"try":1,"ports":3}
{"level":"error","ts":"T","logger":"import","msg":"Failed to import","object":{"name":"hello","namespace":"demo"},"try":2,"service":{"namespace":"demo","name":"hello"},"error":"no"}
`
		if got := regexp.MustCompile(`"ts":"[^"]*"`).ReplaceAllString(out.String(), `"ts":"T"`); got != want {
			t.Errorf("%s:\n%swant\n%s", level, got, want)
		}
	}
}
