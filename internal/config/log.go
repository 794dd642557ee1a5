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

// Log configures the log.
type Log struct {
	Level, Format string
}

var (
	logLevels  = []string{"debug", "info", "error"}
	logFormats = []string{"json", "text"}
)

// errorsPerMinute is the number of error lines with the same message that are written in a minute.
// A line every 10 seconds shows that the problem persists; one for each retry would hide all
// others.
const errorsPerMinute = 6

func (l *Log) bind(common, _ *pflag.FlagSet) {
	common.StringVar(&l.Level, "log-level", l.Level, fmt.Sprintf(
		"Log level: debug, info or error. Except with debug, an error message is written at most %d times a minute.", errorsPerMinute))
	common.StringVar(&l.Format, "log-format", l.Format, "Log format: json or text.")
}

func (l *Log) validate() error {
	return errors.Join(oneOf("log-level", l.Level, logLevels), oneOf("log-format", l.Format, logFormats))
}

// Logger returns a logger that writes to w. Of error lines with the same message, for all objects
// together, it writes the first errorsPerMinute in a minute, unless the level is debug. It writes
// all other lines, whereas controller-runtime's loggers drop messages that repeat more than 100
// times a second, such as "Imported service" for many services at once.
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
	// A stack trace adds nothing to the error message for the user, except in a panic, which has
	// its own.
	return uberzap.New(core, append(options, uberzap.ErrorOutput(sink), uberzap.AddStacktrace(zapcore.PanicLevel))...)
}

func timestamps(c zapcore.EncoderConfig) zapcore.EncoderConfig {
	c.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	return c
}

// errorLimiter writes all lines except errors that repeat. Lines of other levels report an action
// on one object each. It encodes the values of a logger only when a line is written:
// controller-runtime creates a logger for every reconcile, and few of them write anything.
type errorLimiter struct {
	zapcore.Core
	// errors samples the errors to write.
	errors zapcore.Core
	values []zapcore.Field
}

func limitErrors(core zapcore.Core) zapcore.Core {
	return errorLimiter{Core: core, errors: zapcore.NewSamplerWithOptions(core, time.Minute, errorsPerMinute, 0)}
}

// With implements zapcore.Core. Derived loggers share their counts.
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
