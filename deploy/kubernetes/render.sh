#!/bin/sh
# Writes the plain manifests, for those who do without Helm: the chart, rendered.
set -eu
if [ "${1:-}" = --help ] || [ "${1:-}" = -h ]; then
  echo "usage: render.sh [OUT]     OUT: the file [lodefs.yaml]; HELM: the program [helm]"
  exit 0
fi
cd "$(dirname "$0")"
helm=${HELM:-helm}
{
  echo "# Made by render.sh from deploy/helm/lodefs. Before the first use, in namespace lodefs: the"
  echo "# Secrets lodefs-s3 and lodefs-peers, the store in the ConfigMap, the image: docs/kubernetes-install.md"
  "$helm" template lodefs ../helm/lodefs --namespace lodefs --values values.yaml
} >"${1:-lodefs.yaml}"
