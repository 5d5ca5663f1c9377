#!/bin/sh
# Builds the Python packages of lodefs that have no wheel for another architecture: with Debian's
# cross compiler, for Debian's Python. Nothing of that architecture is run.
set -eu

usage() {
  cat <<'TEXT'
usage: foreign-wheels.sh [--architecture NAME] [--python PATH] [--mirror SOURCE] DIR

  --architecture NAME  arm64 [arm64]
  --python PATH        a Python of the version that Debian has (3.11) [/usr/bin/python3]
  --mirror SOURCE      see root.sh

Needs the cross compiler (Debian: gcc-aarch64-linux-gnu libc6-dev-arm64-cross), mmdebstrap, Python
with venv. The wheels are in DIR afterwards. Give them to what installs:
PIP_FIND_LINKS=DIR deploy/debian/build.sh --architecture arm64
TEXT
}

fail() {
  echo "foreign-wheels.sh: $*" >&2
  exit 1
}

version=3.11     # Debian's Python
packages=fastcdc # what the registry has no wheels of for Linux on arm64
builders='poetry-core cython setuptools wheel' # what builds them

architecture=arm64 python=/usr/bin/python3 mirror='' dir=''
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) usage && exit 0 ;;
    --architecture | --python | --mirror)
      [ $# -ge 2 ] || fail "$1 needs a value"
      eval "${1#--}=\$2"
      shift
      ;;
    -*) fail "there is no option $1; see --help" ;;
    *) dir=$1 ;;
  esac
  shift
done
[ -n "$dir" ] || fail "DIR is missing; see --help"
[ "$architecture" = arm64 ] || fail "there is no architecture $architecture; arm64 is known"
machine=aarch64
compiler=$machine-linux-gnu-gcc
need='gcc-aarch64-linux-gnu libc6-dev-arm64-cross'
command -v "$compiler" >/dev/null || fail "$compiler is missing (Debian: $need)"
echo '#include <stdlib.h>' | "$compiler" -E - >/dev/null 2>&1 \
  || fail "$compiler has no C library (Debian: $need)"
"$python" -I -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$version')" \
  || fail "$python is not Python $version, which Debian has; see --python"
here=$(cd "$(dirname "$0")" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 1' HUP INT TERM
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)

headers=$scratch/headers
"$here/root.sh" ${mirror:+--mirror "$mirror"} --architecture "$architecture" extract "$headers" \
  "libpython$version-dev"
mkdir "$scratch/target" # what Python there says of itself: compiler, names of modules
cp "$headers/usr/lib/python$version/_sysconfigdata__$machine-linux-gnu.py" "$scratch/target/"
"$python" -I -m venv "$scratch/venv"
cp "$here/../../constraints.txt" "$scratch/constraints.txt"
export PIP_CONSTRAINT="$scratch/constraints.txt" PIP_DISABLE_PIP_VERSION_CHECK=1
# Not isolated: else pip hides what Python there says of itself.
# shellcheck disable=SC2086  # words are meant
"$scratch/venv/bin/python" -Ps -m pip install -q $builders >&2
for package in $packages; do
  env PYTHONPATH="$scratch/target" \
    _PYTHON_SYSCONFIGDATA_NAME="_sysconfigdata__$machine-linux-gnu" \
    _PYTHON_HOST_PLATFORM="linux-$machine" CC="$compiler" LDSHARED="$compiler -shared" \
    CFLAGS="-O3 -I$headers/usr/include/python$version -idirafter $headers/usr/include" \
    "$scratch/venv/bin/python" -Ps -m pip wheel -q --no-deps --no-build-isolation \
    --no-cache-dir --no-binary "$package" -w "$dir" "$package" >&2
done
for wheel in "$dir"/*.whl; do
  # Some packages leave their compiled module out, and say nothing, when they cannot build it.
  "$python" -I -m zipfile -l "$wheel" | grep -q "$machine-linux-gnu\.so " \
    || fail "${wheel##*/} has no module that is compiled for $machine"
done
