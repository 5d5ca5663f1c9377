#!/bin/sh
# build.sh: builds csi-sanity, the conformance tests of CSI, and prints its path. It is kept outside of the
# checkout, in LODEFS_TOOLS or ~/.cache/lodefs-tools, by what it is built of: about 40 s of a processor, once.
#
# Go comes from the machine where it is new enough, else from the Go module proxy for the build alone.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
go_version=1.24.9
go_sha256=2a683c9c1d65a0e221519c21850a3ed5fe5ff287d39d74e35e4af7ceb9e333b2
cache=${LODEFS_TOOLS:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/lodefs-tools}
key=$(cat "$here/go.mod" "$here/go.sum" "$here/build.sh" | sha256sum | cut -c1-16)
built=$cache/csi-sanity-$key
fetch='import sys, urllib.request; urllib.request.urlretrieve(*sys.argv[1:])'
mkdir -p "$cache"
exec 9>"$cache/csi-sanity.lock"
flock 9
if [ ! -x "$built" ]; then
  work=$(mktemp -d)
  trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
  proxy=$(echo "${GOPROXY:-https://proxy.golang.org}" | cut -d, -f1)
  go=go
  minor=$(go version 2>/dev/null | sed -n 's/^go version go1\.\([0-9]*\).*/\1/p')
  if [ "${minor:-0}" -lt 24 ]; then
    echo "csi-sanity: fetching Go $go_version from $proxy" >&2
    name=v0.0.1-go$go_version.linux-amd64
    for try in 1 2 3; do
      if python3 -c "$fetch" "$proxy/golang.org/toolchain/@v/$name.zip" "$work/go.zip"; then break; fi
    done
    echo "$go_sha256  $work/go.zip" | sha256sum -c - >&2
    python3 -m zipfile -e "$work/go.zip" "$work"
    GOROOT=$work/golang.org/toolchain@$name
    chmod -R +x "$GOROOT/bin" "$GOROOT/pkg/tool"
    export GOROOT GOTOOLCHAIN=local
    go=$GOROOT/bin/go
  fi
  echo "csi-sanity: building it, once, into $cache" >&2
  mkdir "$work/module"
  cp "$here/go.mod" "$here/go.sum" "$work/module"
  cd "$work/module"
  # GOGC: at the default of 100, a quarter of the time goes into the compiler's garbage
  export CGO_ENABLED=0 GOFLAGS=-mod=vendor GOCACHE="$work/gocache" GOGC=400
  for try in 1 2 3; do # the proxy of modules may be busy
    if GOFLAGS= "$go" mod vendor 2>"$work/log"; then break; fi
    if [ "$try" = 3 ]; then cat "$work/log" >&2; exit 1; fi
  done
  "$go" build -trimpath -gcflags='all=-N -l' -ldflags='-s -w' -o "$work/csi-sanity" \
    github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity
  mv "$work/csi-sanity" "$built.new"
  mv "$built.new" "$built"
fi
echo "$built"
