package record

//go:generate go run -C ../../../hack/tools ./protogen ../../internal/registry/record/recordpb record.proto
