#!/bin/sh
# Lays all files of lodefs out below DIR as they will lie below /: the packages of the wheel and of
# what it depends on, compiled; the program; units; documents. install.sh, debian/build.sh,
# docker-plugin/build.sh and bundle/build.sh begin with it. Equal sources and versions give equal bytes.
set -eu

usage() {
  cat <<'TEXT'
usage: stage.sh [--wheel FILE] [--extras NAMES] [--python PATH] [--prefix DIR]
                [--architecture NAME] DIR

  --wheel FILE    a wheel of lodefs [built from this checkout]
  --extras NAMES  optional parts of lodefs, with commas between them [gcs,azure]
  --python PATH   the Python (3.11 or newer, with venv) that will run it [/usr/bin/python3]
  --prefix DIR    where it will be installed: /usr or /usr/local [/usr]
  --architecture NAME
                  amd64 or arm64 [this machine's]. For another one, Python packages must have
                  wheels; debian/foreign-wheels.sh builds those that the registry lacks

Python packages come from where pip is told to look (PIP_*, pip.conf), in the versions of
constraints.txt. SOURCE_DATE_EPOCH dates the files [the last commit]. Prints the version.
TEXT
}

fail() {
  echo "stage.sh: $*" >&2
  exit 1
}

wheel='' extras=gcs,azure python=/usr/bin/python3 prefix=/usr architecture='' dir=''
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) usage && exit 0 ;;
    --wheel | --extras | --python | --prefix | --architecture)
      [ $# -ge 2 ] || fail "$1 needs a value"
      eval "${1#--}=\$2"
      shift
      ;;
    -*) fail "there is no option $1; see --help" ;;
    *)
      [ -z "$dir" ] || fail "one DIR only"
      dir=$1
      ;;
  esac
  shift
done
[ -n "$dir" ] || fail "DIR is missing; see --help"
case $prefix in /*) ;; *) fail "--prefix must begin with /" ;; esac
prefix=${prefix%/}
checkout=$(cd "$(dirname "$0")/.." && pwd)
"$python" -I -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
  || fail "$python must be Python 3.11 or newer with venv (Debian: python3 python3-venv)"
case $(uname -m) in aarch64) own=arm64 ;; *) own=amd64 ;; esac
architecture=${architecture:-$own}
case $architecture in
  amd64) machine=x86_64 ;;
  arm64) machine=aarch64 ;;
  *) fail "there is no architecture $architecture; amd64 and arm64 are known" ;;
esac
if [ -z "${SOURCE_DATE_EPOCH:-}" ]; then
  SOURCE_DATE_EPOCH=$(git -C "$checkout" log -1 --format=%ct 2>/dev/null) \
    || SOURCE_DATE_EPOCH=$(stat -c %Y "$checkout/pyproject.toml")
fi
export SOURCE_DATE_EPOCH PYTHONHASHSEED=0 PIP_DISABLE_PIP_VERSION_CHECK=1
umask 022
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 1' HUP INT TERM

mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
# The pip that "$python" has for environments, run where it lies: an environment takes 3 s to make.
pip_wheel=$("$python" -I -c 'import ensurepip, sysconfig
from pathlib import Path
places = [sysconfig.get_config_var("WHEEL_PKG_DIR"), Path(ensurepip.__file__).with_name("_bundled")]
found = [str(one) for place in places if place for one in Path(place).glob("pip-*.whl")]
for one in found[:1]: print(one)')
[ -n "$pip_wheel" ] || fail "$python has no pip for environments (Debian: python3-venv)"
cp "$checkout/constraints.txt" "$scratch/constraints.txt"
# Also for what builds the wheel; newer ones of pip read the second.
export PIP_CONSTRAINT="$scratch/constraints.txt" PIP_BUILD_CONSTRAINT="$scratch/constraints.txt"
pip() { PYTHONPATH=$pip_wheel PIP_ROOT_USER_ACTION=ignore "$python" -Ps -m pip "$@" >&2; }

if [ -z "$wheel" ]; then # from a copy: setuptools leaves files in the directory that it builds
  mkdir "$scratch/source" "$scratch/wheel"
  for name in chunkstore lodefs mount proxy pyproject.toml README.md LICENSE; do
    cp -R "$checkout/$name" "$scratch/source/"
  done
  pip wheel -q --no-deps -w "$scratch/wheel" "$scratch/source"
  wheel=$(echo "$scratch"/wheel/lodefs-*.whl)
fi
name=${wheel##*/}
case $name in
  lodefs-*.whl) version=${name#lodefs-} version=${version%%-*} ;;
  *) fail "$wheel is no wheel of lodefs" ;;
esac

packages=$dir$prefix/lib/lodefs
mkdir -p "$packages"
importable=$packages # with compiled modules that run here
platform=''
if [ "$architecture" != "$own" ]; then
  importable=$scratch/importable
  pip install -q --no-compile --target "$importable" "$wheel"
  platform="--only-binary=:all:"
  for abi in manylinux2014 manylinux_2_17 manylinux_2_28 manylinux_2_31 manylinux_2_34 linux; do
    platform="$platform --platform=${abi}_$machine"
  done
fi
# shellcheck disable=SC2086  # words are meant
pip install -q --no-compile $platform --target "$packages" "$wheel${extras:+[$extras]}"
# What pip notes for itself, and programs of other packages.
rm -rf "${packages:?}/bin" "$packages"/*.dist-info/direct_url.json "$packages"/*.dist-info/RECORD \
  "$packages"/*.dist-info/INSTALLER "$packages"/*.dist-info/REQUESTED
# Descriptions of the services of AWS, but for S3 and those that credentials come from: 30 MB less.
[ ! -d "$packages/botocore/data" ] || find "$packages/botocore/data" -mindepth 1 -maxdepth 1 \
  -type d ! -name s3 ! -name 'sso*' ! -name sts ! -name signin -exec rm -r {} +
# unchecked: nothing looks at the sources' times when a program starts.
"$python" -Ps -m compileall -q -s "$dir" --invalidation-mode unchecked-hash "$packages"

ours='bin/lodefs\|lib/lodefs\|lib/systemd/system/lodefs\|share/doc/lodefs'
put() { # put MODE FILE PLACE: a file of the checkout, with the places of this prefix in it
  mkdir -p "$dir$(dirname "$3")"
  sed "s:/usr/\($ours\):$prefix/\1:g" "$checkout/$2" >"$dir$3"
  chmod "$1" "$dir$3"
}

mkdir -p "$dir$prefix/bin"
# With its version in the name: compiled modules fit no other.
interpreter=$("$python" -I -c 'import os, sys; print(os.path.realpath(sys.executable))')
cat >"$dir$prefix/bin/lodefs" <<TEXT
#!$interpreter -IS
import sys

sys.path.insert(0, "$prefix/lib/lodefs")
from lodefs.main import main

main()
TEXT
chmod 755 "$dir$prefix/bin/lodefs"

mkdir -p "$dir$prefix/share/man/man1"
PYTHONPATH=$importable PYTHONDONTWRITEBYTECODE=1 "$python" -Ps -m lodefs.main man >"$scratch/lodefs.1"
gzip -9n <"$scratch/lodefs.1" >"$dir$prefix/share/man/man1/lodefs.1.gz"

for unit in "$checkout"/deploy/systemd/lodefs*.service "$checkout"/deploy/systemd/lodefs*.socket; do
  put 644 "deploy/systemd/${unit##*/}" "$prefix/lib/systemd/system/${unit##*/}"
done
put 755 deploy/systemd/lodefs-mounts-generator \
  "$prefix/lib/systemd/system-generators/lodefs-mounts-generator"
put 644 deploy/systemd/lodefs.sysusers "$prefix/lib/sysusers.d/lodefs.conf"
put 644 deploy/systemd/lodefs.tmpfiles "$prefix/lib/tmpfiles.d/lodefs.conf"
put 755 deploy/services.sh "$prefix/lib/lodefs/services.sh"
put 644 deploy/lodefs.toml /etc/lodefs/lodefs.toml
put 600 deploy/lodefs.default /etc/default/lodefs
mkdir -p "$dir/etc/lodefs/mounts.d"
# As they lie in the checkout, so that their links lead somewhere.
documents=$(cd "$checkout" && find -L docs grafana deploy/README.md deploy/docker-compose.yml \
  deploy/helm deploy/kubernetes -type f ! -name '*.py' ! -name '*.pyc' ! -name '*.sh')
doc=$dir$prefix/share/doc/lodefs
mkdir -p "$doc"
# shellcheck disable=SC2086  # words are meant
(cd "$checkout" && cp -L --parents README.md CHANGELOG.md CONTRIBUTING.md LICENSE \
  loadtests/README.md $documents "$doc")
find "$doc" -type f -exec chmod 644 {} + -exec sed -i "s:/usr/\($ours\):$prefix/\1:g" {} +

find "$dir" -type d -exec chmod 755 {} +
find "$packages" -type f ! -name services.sh -exec chmod 644 {} +
find "$dir" -depth -exec touch -hcd "@$SOURCE_DATE_EPOCH" {} +
echo "$version"
