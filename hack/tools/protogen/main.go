// Command protogen generates Go from .proto files without protoc: protocompile parses them, and
// protoc-gen-go, run as the Go tool of this module, writes the code.
//
//	go run -C hack/tools ./protogen ROOT FILE...
//
// FILEs are relative to ROOT; each .pb.go is written beside its .proto.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/protoutil"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: protogen ROOT FILE...")
		os.Exit(2)
	}
	if err := generate(context.Background(), os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "protogen:", err)
		os.Exit(1)
	}
}

func generate(ctx context.Context, root string, files []string) error {
	request, err := compile(ctx, root, files)
	if err != nil {
		return fmt.Errorf("compiling %v: %w", files, err)
	}
	response, err := runPlugin(ctx, request)
	if err != nil {
		return fmt.Errorf("running protoc-gen-go: %w", err)
	}
	if response.Error != nil {
		return errors.New(response.GetError())
	}
	for _, f := range response.File {
		if err := os.WriteFile(filepath.Join(root, f.GetName()), []byte(f.GetContent()), 0o644); err != nil {
			return fmt.Errorf("writing the generated code: %w", err)
		}
	}
	return nil
}

// compile makes the request that protoc would send to a plugin: every file that is needed, imports
// first.
func compile(ctx context.Context, root string, files []string) (*pluginpb.CodeGeneratorRequest, error) {
	compiler := protocompile.Compiler{
		Resolver:       protocompile.WithStandardImports(&protocompile.SourceResolver{ImportPaths: []string{root}}),
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	compiled, err := compiler.Compile(ctx, files...)
	if err != nil {
		return nil, err
	}
	request := &pluginpb.CodeGeneratorRequest{FileToGenerate: files, Parameter: proto.String("paths=source_relative")}
	seen := map[string]bool{}
	for _, f := range compiled {
		request.ProtoFile = appendFile(request.ProtoFile, f, seen)
	}
	return request, nil
}

func appendFile(list []*descriptorpb.FileDescriptorProto, f protoreflect.FileDescriptor, seen map[string]bool) []*descriptorpb.FileDescriptorProto {
	if seen[f.Path()] {
		return list
	}
	seen[f.Path()] = true
	imports := f.Imports()
	for i := range imports.Len() {
		list = appendFile(list, imports.Get(i).FileDescriptor, seen)
	}
	return append(list, protoutil.ProtoFromFileDescriptor(f))
}

func runPlugin(ctx context.Context, request *pluginpb.CodeGeneratorRequest) (*pluginpb.CodeGeneratorResponse, error) {
	in, err := proto.Marshal(request)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	plugin := exec.CommandContext(ctx, "go", "tool", "protoc-gen-go")
	plugin.Stdin, plugin.Stdout, plugin.Stderr = bytes.NewReader(in), &out, os.Stderr
	if err := plugin.Run(); err != nil {
		return nil, err
	}
	response := &pluginpb.CodeGeneratorResponse{}
	return response, proto.Unmarshal(out.Bytes(), response)
}
