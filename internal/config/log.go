package config

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/zapr"
	"github.com/spf13/pflag"
	uberzap "go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
)

// Log is what is logged and how it looks.
type Log struct {
	Level, Format string
}

var (
	logLevels  = []string{"debug", "info", "error"}
	logFormats = []string{"json", "text"}
)

// errorsPerMinute is how often an error line comes with the same message. Who reads a log that repeats every 10 seconds knows that the
// trouble goes on; one that repeats with each retry hides the rest.
const errorsPerMinute = 6

func (l *Log) bind(flags *pflag.FlagSet) {
	flags.StringVar(&l.Level, "log-level", l.Level, fmt.Sprintf(
		"least important log lines that are written: debug, info or error; except with debug, an error is written %d times a minute at most", errorsPerMinute))
	flags.StringVar(&l.Format, "log-format", l.Format, "form of the log lines: json or text")
}

func (l *Log) validate() error {
	return errors.Join(oneOf("log-level", l.Level, logLevels), oneOf("log-format", l.Format, logFormats))
}

// Logger writes log lines to w. Of error lines with the same message, whatever they are about, it writes the first errorsPerMinute of a
// minute, unless the level is debug. It writes all other lines: those of controller-runtime would drop what is the same more than 100
// times a second, as "Imported" of many services at once.
func (l *Log) Logger(w io.Writer) logr.Logger {
	return zapr.NewLogger(l.logger(w))
}

func (l *Log) logger(w io.Writer, options ...uberzap.Option) *uberzap.Logger {
	level := zapcore.InfoLevel
	switch l.Level {
	case "debug":
		level = zapcore.DebugLevel
	case "error":
		level = zapcore.ErrorLevel
	}
	encoder := zapcore.NewJSONEncoder(timestamps(uberzap.NewProductionEncoderConfig()))
	if l.Format == "text" {
		encoder = zapcore.NewConsoleEncoder(timestamps(uberzap.NewDevelopmentEncoderConfig()))
	}
	sink := zapcore.AddSync(w)
	core := zapcore.NewCore(&zap.KubeAwareEncoder{Encoder: encoder}, sink, level)
	if level != zapcore.DebugLevel {
		core = limitErrors(core)
	}
	// A stack trace tells the user nothing that the error does not, except in a panic, which brings its own.
	return uberzap.New(core, append(options, uberzap.ErrorOutput(sink), uberzap.AddStacktrace(zapcore.PanicLevel))...)
}

func timestamps(c zapcore.EncoderConfig) zapcore.EncoderConfig {
	c.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	return c
}

// errorLimiter writes all lines except errors that repeat. Lines of other levels tell what was done to one object each, "Imported" for
// example, and all of them are wanted. The values of a logger become text with each line only: controller-runtime makes a logger for
// every reconcile, and few of them write anything.
type errorLimiter struct {
	zapcore.Core
	// errors says which errors are written.
	errors zapcore.Core
	values []zapcore.Field
}

func limitErrors(core zapcore.Core) zapcore.Core {
	return errorLimiter{Core: core, errors: zapcore.NewSamplerWithOptions(core, time.Minute, errorsPerMinute, 0)}
}

// With implements zapcore.Core. Loggers that descend from one another share their counts.
func (e errorLimiter) With(values []zapcore.Field) zapcore.Core {
	e.values = slices.Concat(e.values, values)
	return e
}

// Check implements zapcore.Core.
func (e errorLimiter) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if !e.Enabled(entry.Level) || entry.Level == zapcore.ErrorLevel && e.errors.Check(entry, nil) == nil {
		return checked
	}
	return checked.AddCore(entry, e)
}

// Write implements zapcore.Core.
func (e errorLimiter) Write(entry zapcore.Entry, values []zapcore.Field) error {
	return e.Core.Write(entry, slices.Concat(e.values, values))
}
