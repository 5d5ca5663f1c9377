#!/bin/sh
# Builds lodefs_VERSION_ARCHITECTURE.deb for this machine's Debian: lodefs with all Python packages
# that it needs, for the Python that builds it. Needs dpkg-deb, Python with venv, and pip's network.
set -eu

usage() {
  cat <<'TEXT'
usage: build.sh [--wheel FILE] [--python PATH] [--architecture NAME] [--level N] [--out DIR]

  --wheel FILE    a wheel of lodefs [built from this checkout]
  --python PATH   the Python of the Debian that it is for [/usr/bin/python3]
  --architecture NAME
                  amd64 or arm64 [this machine's]; see foreign-wheels.sh for another one
  --level N       of zstd: 1 is fast, 9 small [9]
  --out DIR       where the package goes [.]

Equal sources, versions, level and SOURCE_DATE_EPOCH [the last commit] give an equal package. Prints its path.
TEXT
}

fail() {
  echo "build.sh: $*" >&2
  exit 1
}

wheel='' python=/usr/bin/python3 architecture='' level=9 out=.
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) usage && exit 0 ;;
    --wheel | --python | --architecture | --level | --out)
      [ $# -ge 2 ] || fail "$1 needs a value"
      eval "${1#--}=\$2"
      shift
      ;;
    *) fail "there is no option $1; see --help" ;;
  esac
  shift
done
command -v dpkg-deb >/dev/null || fail "dpkg-deb is missing"
here=$(cd "$(dirname "$0")" && pwd)
if [ -z "${SOURCE_DATE_EPOCH:-}" ]; then
  SOURCE_DATE_EPOCH=$(git -C "$here" log -1 --format=%ct 2>/dev/null) \
    || SOURCE_DATE_EPOCH=$(stat -c %Y "$here/../../pyproject.toml")
fi
export SOURCE_DATE_EPOCH LC_ALL=C.UTF-8
umask 022
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 1' HUP INT TERM
tree=$scratch/tree

[ -n "$architecture" ] || architecture=$(dpkg --print-architecture)
version=$("$here/../stage.sh" --python "$python" --architecture "$architecture" \
  ${wheel:+--wheel "$wheel"} "$tree")
# 1.0rc1 comes before 1.0
version=$(echo "$version" | sed 's/\(a\|b\|rc\|\.dev\)\([0-9]\)/~\1\2/')
doc=$tree/usr/share/doc/lodefs
install -m 644 "$here/copyright" "$doc/copyright"
"$python" -I - "$tree/usr/lib/lodefs" >>"$doc/copyright" <<'TEXT'
"""Who wrote what is packed with lodefs, and its license, as each package says."""
import sys
from importlib.metadata import distributions
from pathlib import Path

for one in sorted(distributions(path=[sys.argv[1]]), key=lambda d: d.name.lower()):
    if one.name == "lodefs":
        continue
    about = one.metadata
    license = about["License-Expression"] or (about["License"] or "").partition("\n")[0]
    classes = [c.split(" :: ")[-1] for c in about.get_all("Classifier") or () if "License ::" in c]
    name = one.name.lower().replace("-", "_")
    print(f"\nFiles: usr/lib/lodefs/{name}*")
    print(f"Copyright: the authors of {one.name} {one.version}")
    print(f"License: {license.strip() or ', '.join(classes) or 'see its folder'}")
    texts = sorted(Path(sys.argv[1]).glob(f"{one.metadata['Name'].replace('-', '_')}-*/**/LICEN*"))
    for text in texts[:1]:
        print(f"Comment: /usr/lib/lodefs/{text.relative_to(sys.argv[1])}")
TEXT
{
  echo "lodefs ($version) unstable; urgency=medium"
  echo
  echo "  * /usr/share/doc/lodefs/CHANGELOG.md has what users see."
  echo
  echo " -- lodefs maintainers <lodefs@localhost>  $(date -Ru -d "@$SOURCE_DATE_EPOCH")"
} | gzip -9n >"$doc/changelog.gz"

install -D -m 755 "$here/../enroot/50-lodefs.sh" "$tree/etc/enroot/hooks.d/50-lodefs.sh"
slurm=$tree/usr/share/lodefs/slurm
mkdir -p "$slurm"
cp -R "$here"/../slurm/. "$slurm/"
rm -f "$slurm"/*.so
find "$slurm" -type d -exec chmod 755 {} +
find "$slurm" -type f -exec chmod 644 {} +
find "$slurm" -name '*.sh' -exec chmod 755 {} +
mkdir "$tree/DEBIAN"
install -m 755 "$here/preinst" "$here/postinst" "$here/prerm" "$here/postrm" "$tree/DEBIAN/"
printf '%s\n' /etc/default/lodefs /etc/enroot/hooks.d/50-lodefs.sh /etc/lodefs/lodefs.toml \
  >"$tree/DEBIAN/conffiles"
fits=$("$python" -I -c 'import sys; a, b = sys.version_info[:2]
print(f"python3 (>= {a}.{b}), python3 (<< {a}.{b + 1}), python{a}.{b}")')
cat >"$tree/DEBIAN/control" <<TEXT
Package: lodefs
Version: $version
Architecture: $architecture
Maintainer: lodefs maintainers <lodefs@localhost>
Installed-Size: $(find "$tree" -type f -printf '%s\n' | awk '{ sum += $1 } END { print int(sum / 1024) }')
Depends: $fits, libc6, libgcc-s1, libstdc++6, ca-certificates
Recommends: fuse3, systemd
Suggests: docker.io, git
Section: net
Priority: optional
Description: versioned datasets on S3, mounted in a second
 Datasets are pushed once into a versioned, deduplicated store on S3. On each node one proxy
 caches chunks, shares them with its peers, and lets containers mount any version in about a
 second. This package has the program, the units of a node's services, and the Docker volume
 plugin. Nothing is enabled or started by its installation.
TEXT
(cd "$tree" && find etc usr -type f -print0 | sort -z | xargs -0 md5sum) >"$tree/DEBIAN/md5sums"
chmod 644 "$tree/DEBIAN/control" "$tree/DEBIAN/conffiles" "$tree/DEBIAN/md5sums"
find "$tree" -depth -exec touch -hcd "@$SOURCE_DATE_EPOCH" {} +

mkdir -p "$out"
package=$out/lodefs_${version}_$architecture.deb
# One thread: with more, bytes would depend on how many there are.
dpkg-deb --root-owner-group -Zzstd -z"$level" --threads-max=1 --build "$tree" "$package" >/dev/null
echo "$package"
