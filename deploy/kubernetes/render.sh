#!/bin/sh
# Writes the plain manifests, for those who do without Helm: the chart, rendered. render.sh [OUT]
set -eu
cd "$(dirname "$0")"
helm=${HELM:-helm}
{
  echo "# Made by render.sh from deploy/helm/lodefs. Before the first use, in namespace lodefs: the"
  echo "# Secrets lodefs-s3 and lodefs-peers, the store in the ConfigMap, the image: docs/kubernetes-install.md"
  "$helm" template lodefs ../helm/lodefs --namespace lodefs --values values.yaml
} >"${1:-lodefs.yaml}"
