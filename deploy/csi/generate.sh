#!/bin/sh
# generate.sh: makes mount/csi/generated/*_pb2.py and *_pb2.pyi anew from the .proto files beside them.
# csi.proto is that of the CSI specification 1.12.0 (Apache-2.0). The tools get an environment of their own.
set -eu
if [ "${1:-}" = --help ] || [ "${1:-}" = -h ]; then
  echo "usage: generate.sh"
  exit 0
fi
cd "$(dirname "$0")/../.."
tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
python3 -I -m venv "$tools"
"$tools/bin/pip" install -q grpcio-tools==1.85.1
"$tools/bin/python" -I -m grpc_tools.protoc -I mount/csi/generated --python_out=mount/csi/generated \
  --pyi_out=mount/csi/generated mount/csi/generated/csi.proto mount/csi/generated/registration.proto
