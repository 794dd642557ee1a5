# The same image as `make image` builds without a Docker engine: one static binary, from scratch, not root.
#   docker buildx build --platform linux/amd64,linux/arm64 -t cloud-map-mcs-controller .
#   docker build --build-arg PROGRAM=cloudmap-local -t cloudmap-local .
# By digest, of the index for all platforms; dependabot updates tag and digest together.
FROM --platform=$BUILDPLATFORM golang:1.26.8@sha256:6c2a5538f964f1c82f97ad14988bf05de100d922d159d0e398b54c7b0ca0c6c9 AS build
ARG TARGETOS TARGETARCH VERSION=v0.1.0 PROGRAM=controller
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY api api
COPY cmd cmd
COPY internal internal
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath \
    -ldflags "-s -w -X github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config.Version=$VERSION" \
    -o /out/program ./cmd/$PROGRAM

# Root certificates are in the binary (golang.org/x/crypto/x509roots/fallback).
FROM scratch
COPY --from=build /out/program /program
USER 65532:65532
ENTRYPOINT ["/program"]
