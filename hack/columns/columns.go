package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"strings"
	"unicode/utf8"
)

const (
	// maxColumn is the last column of a comment. CONTRIBUTING.md states it.
	maxColumn = 100
	// tabWidth is the width of a tab, as in most editors for Go.
	tabWidth = 4
)

// unbroken matches the comments that have one line by their syntax: directives and markers of
// controller-gen, and links and commands without a place to break.
var unbroken = regexp.MustCompile(`^//(go:|nolint|[a-z]+:| ?\+[a-z]|\s*\S+$|\t)`)

// wideLines returns the numbers of the lines of a Go file whose comments end beyond maxColumn.
// Generated files have none.
func wideLines(source []byte) (wide []int, err error) {
	files := token.NewFileSet()
	parsed, err := parser.ParseFile(files, "", source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil || ast.IsGenerated(parsed) {
		return nil, err
	}
	lines := strings.Split(string(source), "\n")
	for _, group := range parsed.Comments {
		for _, comment := range group.List {
			first := files.Position(comment.Pos()).Line
			for i := range strings.Count(comment.Text, "\n") + 1 {
				line := strings.ReplaceAll(lines[first+i-1], "\t", strings.Repeat(" ", tabWidth))
				if utf8.RuneCountInString(line) > maxColumn && !unbroken.MatchString(comment.Text) {
					wide = append(wide, first+i)
				}
			}
		}
	}
	return wide, nil
}
