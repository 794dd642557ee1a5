package trust

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"testing"

	"pgregory.net/rapid"
)

func signer(t testing.TB, seed byte) *Signer {
	t.Helper()
	s, err := NewSigner(bytes.Repeat([]byte{seed}, ed25519.SeedSize), nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func testStatement() Statement {
	return Statement{ClusterSetID: "set1", ClusterID: "cls1", UID: "uid-1", Kind: KindPage, Name: "07", Generation: 5, Content: []byte("content")}
}

func TestVerify(t *testing.T) {
	s, other := signer(t, 1), signer(t, 2)
	signature := s.Sign(testStatement())
	if len(signature) != SignatureLength {
		t.Errorf("the signature has %d characters, want %d", len(signature), SignatureLength)
	}
	if err := s.Key().Verify(testStatement(), signature); err != nil {
		t.Errorf("the signature of the statement: %v", err)
	}
	for name, text := range map[string]string{
		"no signature": "", "no base64": "%", "a truncated signature": signature[:80], "padding": signature + "==", "another key": other.Sign(testStatement()),
	} {
		if s.Key().Verify(testStatement(), text) == nil {
			t.Errorf("%s is valid", name)
		}
	}
	if (Key{}).Verify(testStatement(), signature) == nil {
		t.Error("the signature is valid with the zero key")
	}
}

// TestVerify_CoversEveryField: no field of a statement can change without making its signature
// invalid.
func TestVerify_CoversEveryField(t *testing.T) {
	s := signer(t, 1)
	texts := rapid.StringMatching(`[a-c]{0,4}`)
	draw := func(t *rapid.T, label string) Statement {
		return Statement{
			ClusterSetID: texts.Draw(t, label+" clusterset"), ClusterID: texts.Draw(t, label+" cluster"), UID: texts.Draw(t, label+" UID"),
			Kind: Kind(texts.Draw(t, label+" kind")), Name: texts.Draw(t, label+" name"),
			Generation: rapid.Int64().Draw(t, label+" generation"), Content: []byte(texts.Draw(t, label+" content")),
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		a := draw(t, "signed")
		b := a
		if rapid.Bool().Draw(t, "one field differs") {
			c := draw(t, "other")
			fields := []func(){
				func() { b.ClusterSetID = c.ClusterSetID }, func() { b.ClusterID = c.ClusterID }, func() { b.UID = c.UID }, func() { b.Kind = c.Kind },
				func() { b.Name = c.Name }, func() { b.Generation = c.Generation }, func() { b.Content = c.Content },
				func() { b.ClusterID, b.UID = a.UID, a.ClusterID }, func() { b.ClusterSetID, b.ClusterID = a.ClusterSetID+a.ClusterID, "" },
			}
			fields[rapid.IntRange(0, len(fields)-1).Draw(t, "field")]()
		} else {
			b = draw(t, "checked")
		}
		same := a.ClusterSetID == b.ClusterSetID && a.ClusterID == b.ClusterID && a.UID == b.UID && a.Kind == b.Kind && a.Name == b.Name &&
			a.Generation == b.Generation && bytes.Equal(a.Content, b.Content)
		if valid := s.Key().Verify(b, s.Sign(a)) == nil; valid != same {
			t.Fatalf("the signature of %+v is valid for %+v: %t", a, b, valid)
		}
	})
}

func TestNewSigner(t *testing.T) {
	for _, seed := range [][]byte{nil, make([]byte, 31), make([]byte, 33)} {
		if _, err := NewSigner(seed, nil); err == nil {
			t.Errorf("a signer of %d bytes", len(seed))
		}
	}
	if _, err := NewSigner(make([]byte, 32), []byte{1}); err == nil {
		t.Error("a signer with a previous key of 1 byte")
	}
}

func TestSuccession(t *testing.T) {
	next, err := NewSigner(bytes.Repeat([]byte{2}, ed25519.SeedSize), bytes.Repeat([]byte{1}, ed25519.SeedSize))
	if err != nil {
		t.Fatal(err)
	}
	previous := signer(t, 1).Key()
	if keys := next.Keys(); len(keys) != 2 || keys[0] != next.Key() || keys[1] != previous {
		t.Errorf("keys %v, want the current and the previous one", keys)
	}
	if err := previous.Verify(succession("set1", "cls1", next.Key()), next.Succession("set1", "cls1")); err != nil {
		t.Error(err)
	}
	if previous.Verify(succession("set1", "cls2", next.Key()), next.Succession("set1", "cls1")) == nil {
		t.Error("the succession is valid for another cluster")
	}
	if got := signer(t, 1).Succession("set1", "cls1"); got != "" {
		t.Errorf("succession %q without a previous key", got)
	}
}

func TestKeyAsJSON(t *testing.T) {
	want := map[string]Key{"cls1": signer(t, 1).Key()}
	data, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]Key
	if err := json.Unmarshal(data, &got); err != nil || got["cls1"] != want["cls1"] {
		t.Errorf("%s became %v, %v", data, got, err)
	}
}

func FuzzParseKey(f *testing.F) {
	f.Add(signer(f, 1).Key().String())
	f.Add("")
	f.Fuzz(func(t *testing.T, text string) {
		if key, err := ParseKey(text); err == nil && key.String() != text {
			t.Errorf("%q became %q", text, key)
		}
	})
}

func FuzzVerify(f *testing.F) {
	s := signer(f, 1)
	valid := s.Sign(testStatement())
	f.Add(valid, s.Key().String(), []byte("content"))
	f.Add("", "", []byte{})
	f.Fuzz(func(t *testing.T, signature, keyText string, content []byte) {
		key, err := ParseKey(keyText)
		if err != nil {
			return
		}
		statement := testStatement()
		statement.Content = content
		if key.Verify(statement, signature) == nil && key == s.Key() && (signature != valid || string(content) != "content") {
			t.Errorf("signature %q of content %q is valid", signature, content)
		}
	})
}

func BenchmarkSign(b *testing.B) {
	s, statement := signer(b, 1), testStatement()
	statement.Content = make([]byte, 3500)
	for b.Loop() {
		s.Sign(statement)
	}
}

func BenchmarkVerify(b *testing.B) {
	s, statement := signer(b, 1), testStatement()
	statement.Content = make([]byte, 3500)
	signature, key := s.Sign(statement), s.Key()
	for b.Loop() {
		if err := key.Verify(statement, signature); err != nil {
			b.Fatal(err)
		}
	}
}
