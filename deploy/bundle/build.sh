#!/bin/sh
# Makes the bundle: a directory, packed, that runs on any Linux of its architecture. It has a Python
# and C libraries of its own, Debian's, and uses nothing of the machine but the kernel, /bin/sh and
# the certificates. Needs root, mmdebstrap, xz, Python with venv.
set -eu

usage() {
  cat <<'TEXT'
usage: build.sh [--wheel FILE] [--python PATH] [--mirror SOURCE] [--architecture NAME] [--out DIR]

  --wheel FILE     a wheel of lodefs [built from this checkout]
  --python PATH    a Python of the version that Debian has (3.11) [/usr/bin/python3]
  --mirror SOURCE  where Debian's packages are: see deploy/debian/root.sh
  --architecture NAME
                   amd64 or arm64 [this machine's]; see deploy/debian/foreign-wheels.sh for another
  --out DIR        where the bundle goes [.]

Equal sources and versions give equal bytes. Prints the path of the bundle.
TEXT
}

version=3.11 # Debian's Python

fail() {
  echo "build.sh: $*" >&2
  exit 1
}

wheel='' python=/usr/bin/python3 mirror='' architecture='' out=.
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) usage && exit 0 ;;
    --wheel | --python | --mirror | --architecture | --out)
      [ $# -ge 2 ] || fail "$1 needs a value"
      eval "${1#--}=\$2"
      shift
      ;;
    *) fail "there is no option $1; see --help" ;;
  esac
  shift
done
[ "$(id -u)" = 0 ] || fail "needs root: mmdebstrap unpacks packages as root"
command -v xz >/dev/null || fail "xz is missing (Debian: xz-utils)"
"$python" -I -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$version')" \
  || fail "$python is not Python $version, which Debian has; see --python"
here=$(cd "$(dirname "$0")" && pwd)
if [ -z "$architecture" ]; then
  case $(uname -m) in aarch64) architecture=arm64 ;; *) architecture=amd64 ;; esac
fi
if [ -z "${SOURCE_DATE_EPOCH:-}" ]; then
  SOURCE_DATE_EPOCH=$(git -C "$here" log -1 --format=%ct 2>/dev/null) \
    || SOURCE_DATE_EPOCH=$(stat -c %Y "$here/../../pyproject.toml")
fi
export SOURCE_DATE_EPOCH PYTHON="$python" LC_ALL=C.UTF-8
umask 022
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 1' HUP INT TERM

release=$("$here/../stage.sh" --python "$python" --architecture "$architecture" \
  ${wheel:+--wheel "$wheel"} "$scratch/staged")
"$here/../debian/python-root.sh" ${mirror:+--mirror "$mirror"} --architecture "$architecture" \
  "$scratch/root"
name=lodefs-$release-linux-$architecture
bundle=$scratch/$name
mkdir "$bundle"
mv "$scratch/staged" "$bundle/tree"

own=$bundle/tree/usr/lib/lodefs/python
mkdir -p "$own/bin" "$own/lib" "$own/share"
cp "$scratch/root/usr/bin/python$version" "$own/bin/"
cp -R "$scratch/root/usr/lib/python$version" "$own/lib/"
find "$scratch/root/usr/lib" -maxdepth 2 -path '*-linux-gnu*' -name '*.so*' \
  -exec cp -P -t "$own/lib" {} +
cp -L "$scratch"/root/lib*/ld-linux-*.so.* "$own/lib/ld.so"
cp -R "$scratch/root/usr/share/doc" "$own/share/"
install -m 755 "$here/python3" "$own/bin/python3"
install -m 755 "$here/lodefs" "$bundle/tree/usr/bin/lodefs"
mkdir "$bundle/tree/usr/lib/lodefs/start"
cat >"$bundle/tree/usr/lib/lodefs/start/lodefs" <<'TEXT'
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lodefs.main import main

main()
TEXT
mkdir "$bundle/bin"
ln -s ../tree/usr/bin/lodefs "$bundle/bin/lodefs"
install -m 755 "$here/../install.sh" "$here/../uninstall.sh" "$bundle/"
install -m 644 "$here/README" "$bundle/README"

mkdir -p "$out"
tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" \
  -C "$scratch" -cf - "$name" | xz -6 -T 1 >"$scratch/$name.tar.xz"
mv "$scratch/$name.tar.xz" "$out/$name.tar.xz"
echo "$out/$name.tar.xz"
