package peernotify

import (
	"bytes"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestAskAndAnswer(t *testing.T) {
	long := strings.Repeat("c", 63)
	ask := Ask{ClusterSet: long, From: long, Nonce: NewNonce()}
	answer := Answer{ClusterSet: long, From: long, Nonce: ask.Nonce, Generation: math.MinInt64, Heartbeat: math.MinInt64}
	asked, answered := sender.EncodeAsk(ask, receiver.Public()), sender.EncodeAnswer(answer, receiver.Public())
	if !isAsk(asked) || isAnswer(asked) || isAsk(answered) || !isAnswer(answered) {
		t.Errorf("%q is a question: %t, and %q an answer: %t", asked, isAsk(asked), answered, isAnswer(answered))
	}
	if len(asked) != maxAnswer-45 || len(answered) != maxAnswer {
		t.Errorf("%d and %d bytes, want %d and %d", len(asked), len(answered), maxAnswer-45, maxAnswer)
	}
	ask.Key, answer.Key = sender.Public(), sender.Public()
	gotAsk, err := decodeAsk(asked)
	if diff := cmp.Diff(ask, gotAsk); diff != "" || err != nil {
		t.Errorf("%v, a question differs (-want +got):\n%s", err, diff)
	}
	gotAnswer, err := decodeAnswer(answered)
	if diff := cmp.Diff(answer, gotAnswer); diff != "" || err != nil {
		t.Errorf("%v, an answer differs (-want +got):\n%s", err, diff)
	}
	if everybody := strings.Repeat("A", keyLength); sender.EncodeAsk(ask, everybody) != nil || sender.EncodeAnswer(answer, everybody) != nil {
		t.Error("they have a code of a key that everybody has")
	}
	if other := NewNonce(); other == ask.Nonce || len(other) != nonceLength {
		t.Errorf("the nonces are %s and %s", ask.Nonce, other)
	}
}

func TestDecodeAnswerRefuses(t *testing.T) {
	ask := sender.EncodeAsk(Ask{ClusterSet: "set1", From: "cls1", Nonce: NewNonce()}, receiver.Public())
	answer := sender.EncodeAnswer(Answer{ClusterSet: "set1", From: "cls1", Nonce: NewNonce(), Generation: 5, Heartbeat: 6}, receiver.Public())
	word := func(datagram []byte, i int, text string) []byte {
		words := strings.Split(string(datagram), " ")
		words[i] = text
		return []byte(strings.Join(words, " "))
	}
	for name, edit := range map[string]func([]byte) []byte{
		"another version":   func(d []byte) []byte { return word(d, 0, version) },
		"no clusterset":     func(d []byte) []byte { return word(d, 1, "") },
		"no cluster":        func(d []byte) []byte { return word(d, 2, "CLS_1") },
		"no key":            func(d []byte) []byte { return word(d, 3, "key") },
		"a short nonce":     func(d []byte) []byte { return word(d, 4, "nonce") },
		"another word":      func(d []byte) []byte { return append(bytes.Clone(d), " x"...) },
		"a word less":       func(d []byte) []byte { return d[:bytes.LastIndexByte(d, ' ')] },
		"too large":         func(d []byte) []byte { return append(bytes.Clone(d), bytes.Repeat([]byte("x"), maxAnswer)...) },
		"no number":         func([]byte) []byte { return word(answer, 5, "five") },
		"no second number":  func([]byte) []byte { return word(answer, 6, "9223372036854775808") },
		"words of no kinds": func([]byte) []byte { return nil },
	} {
		if _, err := decodeAsk(edit(ask)); err == nil {
			t.Errorf("%s: a question is decoded", name)
		}
		if _, err := decodeAnswer(edit(answer)); err == nil {
			t.Errorf("%s: an answer is decoded", name)
		}
	}
}

// FuzzDecodeAnswer: what is decoded is the encoding of what it says.
func FuzzDecodeAnswer(f *testing.F) {
	f.Add(sender.EncodeAsk(Ask{ClusterSet: "set1", From: "cls1", Nonce: NewNonce()}, receiver.Public()))
	f.Add(sender.EncodeAnswer(Answer{ClusterSet: "set1", From: "cls1", Nonce: NewNonce(), Generation: -5, Heartbeat: 6}, receiver.Public()))
	code := receiver.with(sender.Public()).code
	f.Fuzz(func(t *testing.T, datagram []byte) {
		if a, err := decodeAsk(datagram); err == nil {
			again, err := decodeAsk(a.encode(code))
			if err != nil || again != a {
				t.Errorf("%+v becomes %+v, %v", a, again, err)
			}
		}
		if a, err := decodeAnswer(datagram); err == nil {
			again, err := decodeAnswer(a.encode(code))
			if err != nil || again != a {
				t.Errorf("%+v becomes %+v, %v", a, again, err)
			}
		}
	})
}
