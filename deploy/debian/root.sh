#!/bin/sh
# Makes a root file system of Debian from this machine's own sources of packages.
set -eu

usage() {
  cat <<'TEXT'
usage: root.sh [--mirror SOURCE] [--suite NAME] [--architecture NAME] VARIANT DIR PACKAGE...

  --mirror SOURCE  an address, a line of sources.list or a file of apt [the machine's own sources
                   of Debian]
  --suite NAME     the release of Debian [bookworm]
  --architecture NAME
                   amd64 or arm64 [this machine's]; another one can only be extracted, unless
                   qemu-user-static runs its programs here
  VARIANT          extract: packages are only unpacked; essential: a Debian that runs

How this machine reaches its mirror (a proxy, for example) is not written into DIR.
TEXT
}

suite=bookworm mirror='' architecture=''
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) usage && exit 0 ;;
    --mirror | --suite | --architecture)
      [ $# -ge 2 ] || { usage >&2 && exit 2; }
      eval "${1#--}=\$2"
      shift 2
      ;;
    *) break ;;
  esac
done
[ $# -ge 3 ] || { usage >&2 && exit 2; }
variant=$1 dir=$2
shift 2
packages=$(echo "$*" | tr ' ' ',')
if ! command -v mmdebstrap >/dev/null; then
  echo "root.sh: mmdebstrap is missing (Debian: mmdebstrap)" >&2
  exit 1
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 1' HUP INT TERM

apt-config dump Acquire | grep -E '^Acquire::(https?|Retries|Check-)' >"$scratch/apt.conf" || true
if [ -z "$mirror" ]; then
  # shellcheck disable=SC2016  # $( ) is apt's
  apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT)' \
    'Created-By: Packages' 'Origin: Debian' | grep " $suite" | sort -u >"$scratch/sources" || true
  [ ! -s "$scratch/sources" ] || mirror=$scratch/sources
fi
skip=''
[ "$variant" != extract ] || skip=check/qemu # nothing of it is run
mmdebstrap --quiet --variant="$variant" ${skip:+"--skip=$skip"} \
  ${architecture:+"--architectures=$architecture"} --aptopt="$scratch/apt.conf" \
  --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/man/*' \
  --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr --include="$packages" \
  "$suite" "$dir" ${mirror:+"$mirror"} >&2
rm -f "$dir/etc/apt/apt.conf.d/99mmdebstrap" "$dir"/etc/apt/sources.list.d/*
