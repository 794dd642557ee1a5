package coredns

import (
	"fmt"
	"strings"
)

// A block is a server block of a Corefile (`.:53 { … }`) or a snippet (`(name) { … }`).
type block struct {
	keys       []token
	directives []directive
	end        int // offset after the closing brace, 0 without braces
}

// snippet returns the name by which the block can be imported, or "" for a server block.
func (b *block) snippet() string {
	if len(b.keys) != 1 {
		return ""
	}
	name, opened := strings.CutPrefix(b.keys[0].text, "(")
	name, closed := strings.CutSuffix(name, ")")
	if !opened || !closed {
		return ""
	}
	return name
}

// imports reports whether the block imports the snippet.
func (b *block) imports(snippet string) bool {
	for _, d := range b.directives {
		if d[0].text == "import" && len(d) == 2 && d[1].text == snippet {
			return true
		}
	}
	return false
}

// A directive is one plugin's line with its block, if it has one: `kubernetes cluster.local { … }`.
type directive []token

// parse groups tokens as CoreDNS's parser does, without following imports of other files.
func parse(tokens []token) ([]*block, error) {
	p := parser{tokens: tokens}
	return p.blocks()
}

type parser struct {
	tokens  []token
	at      int
	imports []token // the arguments of imports outside of blocks
}

func (p *parser) blocks() ([]*block, error) {
	var blocks []*block
	for p.hasMore() {
		b := &block{keys: p.keys()}
		if err := p.body(b); err != nil {
			return nil, err
		}
		if len(b.keys) > 0 {
			blocks = append(blocks, b)
		}
	}
	return blocks, nil
}

func (p *parser) hasMore() bool { return p.at < len(p.tokens) }
func (p *parser) text() string  { return p.tokens[p.at].text }
func (p *parser) startsNewLine() bool {
	return p.at == 0 || startsLine(p.tokens[p.at-1], p.tokens[p.at])
}

// startsLine reports whether t is on a later line than the previous token.
func startsLine(before, t token) bool { return before.lastLine() < t.line }

// keys reads the keys of a block: those on one line, and on the next after a trailing comma. It
// collects top-level imports.
func (p *parser) keys() []token {
	var keys []token
	for p.hasMore() && p.text() != "{" {
		if p.text() == "import" && p.startsNewLine() {
			p.readImport()
			continue
		}
		key := p.tokens[p.at]
		p.at++
		if key.text != "" {
			keys = append(keys, key)
		}
		if p.hasMore() && p.startsNewLine() && !strings.HasSuffix(key.text, ",") {
			break
		}
	}
	return keys
}

func (p *parser) readImport() {
	p.at++
	for p.hasMore() && !p.startsNewLine() {
		p.imports = append(p.imports, p.tokens[p.at])
		p.at++
	}
}

// body reads the directives between a block's braces. A Corefile with a single server needs no
// braces.
func (p *parser) body(b *block) error {
	braced := p.hasMore() && p.text() == "{"
	if braced {
		p.at++
	}
	for p.hasMore() {
		if p.text() == "}" {
			if braced {
				b.end = p.tokens[p.at].end
			}
			p.at++
			return nil
		}
		d, err := p.directive()
		if err != nil {
			return err
		}
		b.directives = append(b.directives, d)
	}
	if braced {
		return fmt.Errorf("parsing the Corefile: the block of %q has no closing brace", keyTexts(b.keys))
	}
	return nil
}

// directive reads up to the end of the line, or of the block that opens on it.
func (p *parser) directive() (directive, error) {
	start, depth := p.at, 0
	for p.at++; p.hasMore(); p.at++ {
		switch text := p.text(); {
		case text == "{":
			depth++
		case depth == 0 && p.startsNewLine():
			return p.tokens[start:p.at], nil
		case text == "}" && depth > 0:
			depth--
		case text == "}":
			return nil, fmt.Errorf("parsing the Corefile: line %d: a closing brace without an opening one", p.tokens[p.at].line)
		}
	}
	if depth > 0 {
		return nil, fmt.Errorf("parsing the Corefile: line %d: the block of %q has no closing brace", p.tokens[start].line, p.tokens[start].text)
	}
	return p.tokens[start:], nil
}

func keyTexts(keys []token) string {
	texts := make([]string, len(keys))
	for i, k := range keys {
		texts[i] = k.text
	}
	return strings.Join(texts, " ")
}
