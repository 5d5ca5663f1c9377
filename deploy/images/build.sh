#!/bin/sh
# Makes the container image of lodefs, without Docker and without a base image: Debian's Python, the
# Python packages of constraints.txt, lodefs. One image is proxy, CSI driver and command line.
# Needs root, mmdebstrap, Python with venv; Debian's and Python's package registries.
set -eu

usage() {
  cat <<'TEXT'
usage: build.sh [--name NAME] [--tag TAG] [--wheel FILE] [--python PATH] [--mirror SOURCE]
                [--architecture NAME] [--cache DIR] OUT.tar

  --name NAME      of the image [lodefs]
  --tag TAG        [the version of lodefs]
  --wheel FILE     a wheel of lodefs [built from this checkout]
  --python PATH    a Python of the version that Debian has (3.11) [/usr/bin/python3]
  --mirror SOURCE  where Debian's packages are: see deploy/debian/root.sh
  --architecture NAME
                   amd64 or arm64 [this machine's]; see deploy/debian/foreign-wheels.sh for another
  --cache DIR      keep what changes rarely there (Debian, Python packages), and take it from there:
                   for tests; a release is built without, with the newest packages of Debian

Equal sources and versions give equal bytes. Afterwards one of
  docker load -i OUT.tar        ctr -n k8s.io images import OUT.tar
  skopeo copy docker-archive:OUT.tar docker://REGISTRY/lodefs:TAG
TEXT
}

version=3.11 # Debian's Python

fail() {
  echo "build.sh: $*" >&2
  exit 1
}

name=lodefs tag='' wheel='' python=/usr/bin/python3 mirror='' architecture='' cache='' out=''
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) usage && exit 0 ;;
    --name | --tag | --wheel | --python | --mirror | --architecture | --cache)
      [ $# -ge 2 ] || fail "$1 needs a value"
      eval "${1#--}=\$2"
      shift
      ;;
    -*) fail "there is no option $1; see --help" ;;
    *)
      [ -z "$out" ] || fail "one OUT.tar only"
      out=$1
      ;;
  esac
  shift
done
[ -n "$out" ] || fail "OUT.tar is missing; see --help"
[ "$(id -u)" = 0 ] || fail "needs root: files of the image are root's"
"$python" -I -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$version')" \
  || fail "$python is not Python $version, which Debian has; see --python"
if [ -z "$architecture" ]; then
  case $(uname -m) in aarch64) architecture=arm64 ;; *) architecture=amd64 ;; esac
fi
here=$(cd "$(dirname "$0")" && pwd)
checkout=$(cd "$here/../.." && pwd)
if [ -z "${SOURCE_DATE_EPOCH:-}" ]; then
  SOURCE_DATE_EPOCH=$(git -C "$checkout" log -1 --format=%ct 2>/dev/null) \
    || SOURCE_DATE_EPOCH=$(stat -c %Y "$checkout/pyproject.toml")
fi
export SOURCE_DATE_EPOCH PYTHONHASHSEED=0 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHON="$python"
umask 022
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 1' HUP INT TERM

key() { # key FILE...: of their bytes
  cat "$@" | sha256sum | cut -c 1-16
}
layer() { # layer NAME KEY COMMAND...: what COMMAND DIR makes, or what it made before
  layer_name=$1-$2 place=$scratch/$1
  shift 2
  if [ -n "$cache" ] && [ -d "$cache/$layer_name" ]; then
    ln -s "$cache/$layer_name" "$place"
    return
  fi
  "$@" "$place"
  [ -n "$cache" ] || return 0
  mkdir -p "$cache"
  kept=$(mktemp -d "$cache/.new-XXXXXX")
  cp -a "$place" "$kept/layer"
  mv -T "$kept/layer" "$cache/$layer_name" 2>/dev/null || rm -rf "$kept/layer" # made by another one
  rmdir "$kept"
}

debian() { # debian DIR: Python and what the images' users need
  "$here/../debian/python-root.sh" ${mirror:+--mirror "$mirror"} \
    --architecture "$architecture" "$1"
  echo 'lodefs:x:65532:65532:lodefs:/var/lib/lodefs:/usr/sbin/nologin' >>"$1/etc/passwd"
  echo 'lodefs:x:65532:' >>"$1/etc/group"
}
packages() { # packages DIR: what lodefs depends on, with extras for Kubernetes, clouds and the hub
  mkdir -p "$1"
  "$here/../stage.sh" --python "$python" --extras csi,gcs,azure,hf --wheel "$wheel" \
    --architecture "$architecture" "$scratch/staged" >/dev/null
  mkdir -p "$1/usr/lib"
  mv "$scratch/staged/usr/lib/lodefs" "$1/usr/lib/lodefs"
  rm -rf "$1"/usr/lib/lodefs/lodefs "$1"/usr/lib/lodefs/lodefs-*.dist-info \
    "$1"/usr/lib/lodefs/services.sh
}

mkdir "$scratch/source" "$scratch/wheel"
"$python" -I -m venv "$scratch/venv"
cp "$checkout/constraints.txt" "$scratch/constraints.txt"
export PIP_CONSTRAINT="$scratch/constraints.txt" PIP_BUILD_CONSTRAINT="$scratch/constraints.txt"
pip() { "$scratch/venv/bin/python" -Ps -m pip "$@" >&2; }
if [ -z "$wheel" ]; then
  for part in chunkstore lodefs mount proxy pyproject.toml README.md LICENSE; do
    cp -R "$checkout/$part" "$scratch/source/"
  done
  pip wheel -q --no-deps -w "$scratch/wheel" "$scratch/source"
  wheel=$(echo "$scratch"/wheel/lodefs-*.whl)
fi
if [ -z "$tag" ]; then tag=${wheel##*/lodefs-} tag=${tag%%-*}; fi

layer "debian-$architecture" "$(key "$here/build.sh" "$here"/../debian/*root.sh)" debian
layer "packages-$architecture" "$(key "$here/build.sh" "$here/../stage.sh" \
  "$checkout/pyproject.toml" "$checkout/constraints.txt")" packages

own=$scratch/own
mkdir -p "$own/usr/bin" "$own/var/lib/lodefs"
pip install -q --no-compile --no-deps --target "$own/usr/lib/lodefs" "$wheel"
rm -rf "$own/usr/lib/lodefs/bin" "$own"/usr/lib/lodefs/*.dist-info/direct_url.json \
  "$own"/usr/lib/lodefs/*.dist-info/RECORD "$own"/usr/lib/lodefs/*.dist-info/INSTALLER
"$python" -Ps -m compileall -q -s "$own" --invalidation-mode unchecked-hash "$own/usr/lib/lodefs"
cat >"$own/usr/bin/lodefs" <<TEXT
#!/usr/bin/python$version -IS
import sys

sys.path.insert(0, "/usr/lib/lodefs")
from lodefs.main import main

main()
TEXT
chmod 755 "$own/usr/bin/lodefs"
find "$own" -type d -exec chmod 755 {} +
chmod 1777 "$own/var/lib/lodefs" # the home directory, of whatever user the container has

cat >"$scratch/config.json" <<TEXT
{
  "User": "65532:65532",
  "Entrypoint": ["/usr/bin/lodefs"],
  "Cmd": ["--help"],
  "Env": ["PATH=/usr/bin", "LANG=C.UTF-8", "HOME=/var/lib/lodefs"],
  "WorkingDir": "/",
  "Labels": {
    "org.opencontainers.image.title": "lodefs",
    "org.opencontainers.image.licenses": "Apache-2.0",
    "org.opencontainers.image.version": "$tag"
  }
}
TEXT
mkdir -p "$(dirname "$out")"
export ARCHITECTURE="$architecture"
"$python" -I "$here/archive.py" "$out" "$name:$tag" "$scratch/config.json" \
  "$scratch/debian-$architecture/" "$scratch/packages-$architecture/" "$own/"
echo "$name:$tag"
