package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A mutant is one edit of a source file.
type mutant struct {
	file       string
	line       int
	operator   string
	source     []byte // of the file
	start, end int    // offsets of the text that is replaced
	text       string
}

// apply returns the source with the mutant's edit.
func (m mutant) apply() []byte {
	mutated := slices.Concat(m.source[:m.start], []byte(m.text), m.source[m.end:])
	if strings.Contains(m.text, "mutateZero(") {
		return append(mutated, zeroFunction...)
	}
	return mutated
}

const zeroFunction = "\nfunc mutateZero[T any](T) (zero T) { return zero }\n"

// finder collects the mutants of one file.
type finder struct {
	name    string
	source  []byte
	files   *token.FileSet
	mutants []mutant
}

// findMutants returns the mutants of a file in the order of its lines, none for a generated file.
func findMutants(name string, source []byte) ([]mutant, error) {
	f := &finder{name: name, source: source, files: token.NewFileSet()}
	file, err := parser.ParseFile(f.files, name, source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil || ast.IsGenerated(file) {
		return nil, err
	}
	ast.Inspect(file, f.visit)
	slices.SortStableFunc(f.mutants, func(a, b mutant) int { return a.start - b.start })
	return f.mutants, nil
}

// visit adds the mutants of a node and reports whether its children are visited.
func (f *finder) visit(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.GenDecl:
		return n.Tok == token.VAR // limits and intervals are arithmetic that no test repeats
	case *ast.ArrayType:
		return false
	case *ast.FuncDecl:
		f.returnedErrors(n.Type, n.Body)
	case ast.Stmt:
		return f.statement(n)
	case ast.Expr:
		f.expression(n)
	}
	return true
}

// statement adds the mutants of a statement and reports whether its children are visited.
func (f *finder) statement(n ast.Stmt) bool {
	switch n := n.(type) {
	case *ast.ExprStmt:
		return !f.callStatement(n)
	case *ast.IfStmt:
		f.condition(n.Cond)
	case *ast.ForStmt:
		return f.loop(n)
	case *ast.SwitchStmt:
		f.caseConditions(n)
	case *ast.AssignStmt:
		f.assignment(n)
	case *ast.IncDecStmt:
		f.replace("drop "+n.Tok.String(), n, "")
	case *ast.BranchStmt:
		f.branch(n)
	}
	return true
}

// expression adds the mutants of an expression.
func (f *finder) expression(n ast.Expr) {
	switch n := n.(type) {
	case *ast.FuncLit:
		f.returnedErrors(n.Type, n.Body)
	case *ast.BinaryExpr:
		f.binary(n)
	case *ast.CompositeLit:
		f.fields(n)
	case *ast.BasicLit:
		f.integer(n)
	case *ast.Ident:
		f.boolean(n)
	}
}

// loop adds the mutants of a loop, except that of its step: a loop without it never ends. It
// reports whether the children are still to be visited.
func (f *finder) loop(n *ast.ForStmt) bool {
	f.condition(n.Cond)
	if n.Post == nil {
		return true
	}
	ast.Inspect(n.Body, f.visit)
	return false
}

func (f *finder) branch(n *ast.BranchStmt) {
	if n.Tok == token.CONTINUE && n.Label == nil {
		f.replace("continue to break", n, "break")
	}
}

// condition negates a condition. The operator of == and != does that already.
func (f *finder) condition(cond ast.Expr) {
	if comparison, ok := cond.(*ast.BinaryExpr); cond == nil || ok && (comparison.Op == token.EQL || comparison.Op == token.NEQ) {
		return
	}
	f.replace("negate condition", cond, "!("+f.text(cond)+")")
}

// caseConditions negates the conditions of a switch without a tag.
func (f *finder) caseConditions(n *ast.SwitchStmt) {
	if n.Tag != nil {
		return
	}
	for _, clause := range n.Body.List {
		for _, cond := range clause.(*ast.CaseClause).List {
			f.condition(cond)
		}
	}
}

// swapped are the operators of binary expressions that are replaced.
var swapped = map[token.Token]token.Token{
	token.LSS: token.LEQ, token.LEQ: token.LSS, token.GTR: token.GEQ, token.GEQ: token.GTR,
	token.EQL: token.NEQ, token.NEQ: token.EQL, token.LAND: token.LOR, token.LOR: token.LAND,
}

func (f *finder) binary(n *ast.BinaryExpr) {
	if to, ok := swapped[n.Op]; ok {
		start := f.offset(n.OpPos)
		f.add(fmt.Sprintf("%s to %s", n.Op, to), n.OpPos, start, start+len(n.Op.String()), to.String())
	}
}

// assignment drops each assignment of a statement. The value is still computed, so that its
// variables are used.
func (f *finder) assignment(n *ast.AssignStmt) {
	if n.Tok == token.DEFINE {
		return
	}
	for i, target := range n.Lhs {
		switch value := n.Rhs[min(i, len(n.Rhs)-1)]; {
		case f.text(target) == "_":
		case n.Tok != token.ASSIGN, len(n.Lhs) == 1 && f.text(value) != "nil":
			f.replace("drop assignment of "+f.text(target), n, "_ = "+f.text(value))
		case len(n.Lhs) == 1:
			f.replace("drop assignment of "+f.text(target), n, "")
		default:
			f.replace("drop assignment of "+f.text(target), target, "_")
		}
	}
}

// fields drops each keyed element of a composite literal: in most cases a field, such as a setting
// that is passed on.
func (f *finder) fields(n *ast.CompositeLit) {
	for _, element := range n.Elts {
		field, ok := element.(*ast.KeyValueExpr)
		if !ok {
			continue
		}
		switch value, isName := field.Value.(*ast.Ident); {
		case isName && value.Name != "nil" && value.Name != "true" && value.Name != "false":
			// A variable that is used only here must stay in use.
			f.replace("drop field "+f.text(field.Key), field.Value, "mutateZero("+value.Name+")")
		default:
			end := f.offset(field.End())
			if rest := bytes.TrimLeft(f.source[end:], " \t"); bytes.HasPrefix(rest, []byte(",")) {
				end = len(f.source) - len(rest) + 1
			}
			f.add("drop field "+f.text(field.Key), field.Pos(), f.offset(field.Pos()), end, "")
		}
	}
}

var logCall = regexp.MustCompile(`(?i)log(ger)?\b.*\.(info|error)$`)

// callStatement drops a call. The arguments are still computed, so that their variables are used.
// It reports whether the call writes a log: those are not mutated at all.
func (f *finder) callStatement(n *ast.ExprStmt) (isLog bool) {
	call, ok := n.X.(*ast.CallExpr)
	if !ok {
		return false
	}
	if logCall.MatchString(f.text(call.Fun)) {
		return true
	}
	text := ""
	if len(call.Args) > 0 {
		text = "_ = []any{" + string(f.source[f.offset(call.Args[0].Pos()):f.offset(call.Args[len(call.Args)-1].End())]) + "}"
	}
	f.replace("drop call of "+f.text(call.Fun), n, text)
	return false
}

// returnedErrors replaces the errors that a function returns by nil.
func (f *finder) returnedErrors(signature *ast.FuncType, body *ast.BlockStmt) {
	if body == nil || signature.Results == nil || f.text(signature.Results.List[len(signature.Results.List)-1].Type) != "error" {
		return
	}
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			return false
		case *ast.ReturnStmt:
			if len(n.Results) > 0 && len(n.Results) == signature.Results.NumFields() && f.text(n.Results[len(n.Results)-1]) != "nil" {
				f.replace("return nil error", n.Results[len(n.Results)-1], "nil")
			}
		}
		return true
	})
}

func (f *finder) integer(n *ast.BasicLit) {
	value, err := strconv.ParseInt(n.Value, 0, 32)
	if n.Kind != token.INT || err != nil {
		return
	}
	f.replace("integer + 1", n, strconv.FormatInt(value+1, 10))
	if value > 0 {
		f.replace("integer - 1", n, strconv.FormatInt(value-1, 10))
	}
}

func (f *finder) boolean(n *ast.Ident) {
	switch n.Name {
	case "true":
		f.replace("true to false", n, "false")
	case "false":
		f.replace("false to true", n, "true")
	}
}

func (f *finder) replace(operator string, n ast.Node, text string) {
	f.add(operator, n.Pos(), f.offset(n.Pos()), f.offset(n.End()), text)
}

// add adds a mutant. It keeps the number of lines, so that failures of tests have the lines of the
// source.
func (f *finder) add(operator string, at token.Pos, start, end int, text string) {
	lines := bytes.Count(f.source[start:end], []byte("\n")) - strings.Count(text, "\n")
	f.mutants = append(f.mutants, mutant{
		file: f.name, line: f.files.Position(at).Line, operator: firstLine(operator), source: f.source,
		start: start, end: end, text: text + strings.Repeat("\n", max(0, lines)),
	})
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}

func (f *finder) offset(pos token.Pos) int { return f.files.Position(pos).Offset }

func (f *finder) text(n ast.Node) string {
	return string(f.source[f.offset(n.Pos()):f.offset(n.End())])
}
