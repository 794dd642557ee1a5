package config

import (
	"errors"
	"io"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
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

func (l *Log) bind(flags *pflag.FlagSet) {
	flags.StringVar(&l.Level, "log-level", l.Level, "least important log lines that are written: debug, info or error")
	flags.StringVar(&l.Format, "log-format", l.Format, "form of the log lines: json or text")
}

func (l *Log) validate() error {
	return errors.Join(oneOf("log-level", l.Level, logLevels), oneOf("log-format", l.Format, logFormats))
}

// Logger writes log lines to w.
func (l *Log) Logger(w io.Writer) logr.Logger {
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
	return zap.New(zap.WriteTo(w), zap.Level(level), zap.StacktraceLevel(zapcore.PanicLevel), encoder)
}

func timestamps(c *zapcore.EncoderConfig) {
	c.EncodeTime = zapcore.RFC3339NanoTimeEncoder
}
