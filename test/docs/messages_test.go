package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/docs"
)

// messageFolders have the code whose texts users read: of the programs, and of the dashboard and
// the templates that are generated.
var messageFolders = []string{"cmd", "internal", "cloudmaplocal", "hack/monitoring", "hack/cloudformation"}

// pagePath matches the path of a page in a text.
var pagePath = regexp.MustCompile(`(?:^|[^\w/])docs/[\w-]+(?:/[\w-]+)*(?:\.md)?`)

// TestMessagesNameURLs checks the texts of the programs. A user of a program has no checkout, so a
// message names the URL of a page, by docs.URL, and the page has the heading.
func TestMessagesNameURLs(t *testing.T) {
	all := pages(t)
	named := 0
	for _, folder := range messageFolders {
		for _, file := range parseFiles(t, filepath.Join(root, folder)) {
			ast.Inspect(file.tree, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.ImportSpec:
					return false
				case *ast.CallExpr:
					if !isDocsURL(n) {
						return true
					}
					named++
					to, isLiteral := literal(n.Args[0])
					if !isLiteral {
						t.Errorf("%s: the argument of docs.URL is no literal, so this test cannot check it", file.position(n))
					} else if err := follow(all, "docs/README.md", to); err != nil {
						t.Errorf("%s: docs.URL(%q): %v", file.position(n), to, err)
					}
					return false
				case *ast.BasicLit:
					text, _ := literal(n)
					// a comment in a generated file is no message
					if m := pagePath.FindString(text); m != "" && !strings.HasPrefix(text, "# ") {
						t.Errorf("%s: %q names a path: use docs.URL of internal/docs", file.position(n), strings.TrimSpace(m))
					}
				}
				return true
			})
		}
	}
	if named < 50 {
		t.Errorf("%d calls of docs.URL found, want the 70 or so that there are", named)
	}
}

// A goFile is a parsed file.
type goFile struct {
	set  *token.FileSet
	tree *ast.File
}

func (f goFile) position(n ast.Node) token.Position { return f.set.Position(n.Pos()) }

// parseFiles parses the Go files below a folder without tests.
func parseFiles(t *testing.T, folder string) (files []goFile) {
	t.Helper()
	err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return err
		}
		set := token.NewFileSet()
		tree, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
		files = append(files, goFile{set, tree})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// isDocsURL reports whether a call is one of docs.URL.
func isDocsURL(call *ast.CallExpr) bool {
	f, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || f.Sel.Name != "URL" {
		return false
	}
	pkg, ok := f.X.(*ast.Ident)
	return ok && pkg.Name == "docs"
}

// literal returns the text of a string literal.
func literal(e ast.Expr) (string, bool) {
	lit, ok := e.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(lit.Value)
	return text, err == nil
}

// TestURLsOfDeploy follows the URLs of pages in the chart, the alerts, the dashboard and the
// templates. They name the branch main, which a release replaces by its tag in the chart.
func TestURLsOfDeploy(t *testing.T) {
	all := pages(t)
	prefix := strings.TrimSuffix(docs.URL(""), "docs/")
	url := regexp.MustCompile(regexp.QuoteMeta(prefix) + `([\w/.-]*[\w-](?:#[\w-]+)?)`)
	followed := 0
	err := filepath.WalkDir(filepath.Join(root, "deploy"), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, m := range url.FindAllStringSubmatch(string(text), -1) {
			followed++
			if err := follow(all, "README.md", m[1]); err != nil {
				t.Errorf("%s: %s: %v", path, m[0], err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if followed < 50 {
		t.Errorf("%d URLs followed, want those of all alerts", followed)
	}
}
