package redact_test

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/redact"
)

func TestText(t *testing.T) {
	tests := map[string]string{
		"":           "",
		"plain text": "plain text",
		`--poll-interval=1: must be a duration, such as "1s"`:                       `--poll-interval=1: must be a duration, such as "1s"`,
		`Post "https://a.example.com/": EOF`:                                        `Post "https://a.example.com/": EOF`,
		"x: must be a URL such as https://a\ny: must be letters of +=,.@-":          "x: must be a URL such as https://a\ny: must be letters of +=,.@-",
		"dial https://user:hunter2@a:2379 and https://user:hunter2@b:2379: refused": "dial https://…@b:2379: refused",
		`dial https://user:hun"ter2@a: no`:                                          "dial https://…@a: no",
		"dial https://user:hun/ter 2@a: no":                                         "dial https://…@a: no",
		`parse "user:hunter2@a:2379": no scheme`:                                    `parse "…@a:2379": no scheme`,
		`parse "https://user:hun\"ter2@a": bad`:                                     `parse "…@a": bad`,
		`parse "https://user:hun@ter2@a": bad`:                                      `parse "…@a": bad`,
	}
	for text, want := range tests {
		if got := redact.Text(text); got != want {
			t.Errorf("%s\nbecomes %s\nwant    %s", text, got, want)
		}
	}
}

func TestError(t *testing.T) {
	if err := redact.Error(nil); err != nil {
		t.Errorf("no error becomes %v", err)
	}
	if err := redact.Error(io.EOF); !errors.Is(err, io.EOF) || err.Error() != "EOF" {
		t.Errorf("an error with nothing to hide becomes %v", err)
	}
	err := redact.Error(fmt.Errorf("https://user:hunter2@a: %w", io.EOF))
	if err.Error() != "https://…@a: EOF" || !errors.Is(err, io.EOF) {
		t.Errorf("error %q, EOF %v", err, errors.Is(err, io.EOF))
	}
}

// FuzzText: nothing before the @ of a quoted URL is left, and what has no @ stays.
func FuzzText(f *testing.F) {
	f.Add("hunter2")
	f.Add(`a"b\c`)
	f.Fuzz(func(t *testing.T, password string) {
		secret := "begin" + password + "end"
		if got := redact.Text(fmt.Sprintf("parse %q: bad", "https://u:"+secret+"@host")); got != `parse "…@host": bad` {
			t.Errorf("%q leaves %s", secret, got)
		}
		if plain := strings.ReplaceAll(password, "@", ""); redact.Text(plain) != plain {
			t.Errorf("%q becomes %q", plain, redact.Text(plain))
		}
	})
}
