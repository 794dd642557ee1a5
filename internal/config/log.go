package config

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/go-logr/logr"
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
// minute, unless the level is debug.
func (l *Log) Logger(w io.Writer) logr.Logger {
	return zap.New(l.options(w)...)
}

func (l *Log) options(w io.Writer) []zap.Opts {
	level := zapcore.InfoLevel
	switch l.Level {
	case "debug":
		level = zapcore.DebugLevel
	case "error":
		level = zapcore.ErrorLevel
	}
	encoder := zap.JSONEncoder(timestamps)
	if l.Format == "text" {
		encoder = zap.ConsoleEncoder(timestamps)
	}
	// A stack trace tells the user nothing that the error does not, except in a panic, which brings its own.
	options := []zap.Opts{zap.WriteTo(w), zap.Level(level), zap.StacktraceLevel(zapcore.PanicLevel), encoder}
	if level != zapcore.DebugLevel {
		options = append(options, zap.RawZapOpts(uberzap.WrapCore(limitErrors)))
	}
	return options
}

func timestamps(c *zapcore.EncoderConfig) {
	c.EncodeTime = zapcore.RFC3339NanoTimeEncoder
}

// errorLimiter writes all lines except errors that repeat. Lines of other levels tell what was done to one object each, "Imported" for
// example, and all of them are wanted.
type errorLimiter struct {
	zapcore.Core              // for other lines
	errors       zapcore.Core // for errors
}

func limitErrors(core zapcore.Core) zapcore.Core {
	return errorLimiter{Core: core, errors: zapcore.NewSamplerWithOptions(core, time.Minute, errorsPerMinute, 0)}
}

// With implements zapcore.Core. Loggers that descend from one another share their counts.
func (e errorLimiter) With(fields []zapcore.Field) zapcore.Core {
	return errorLimiter{Core: e.Core.With(fields), errors: e.errors.With(fields)}
}

// Check implements zapcore.Core.
func (e errorLimiter) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if entry.Level == zapcore.ErrorLevel {
		return e.errors.Check(entry, checked)
	}
	return e.Core.Check(entry, checked)
}
