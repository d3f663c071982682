#!/usr/bin/env bash
# Builds the files of a release:
#
#     apps/springtide/packaging/release.sh [--profile PROFILE] [--target TRIPLE] [--check] DIR
#
#   springtide-VERSION-TRIPLE.tar.gz   the static program, licences, man pages, completions, units
#   springtide_VERSION_ARCH.deb        the same as a Debian package, where dpkg-deb is installed
#   springtide-VERSION.cdx.json        the bill of materials (CycloneDX 1.5): all crates and licences
#   SHA256SUMS                         their checksums
#
# The program is linked with musl where its target is installed, else statically with glibc. The
# default profile is `dist`. --check runs the program in an empty root, which needs user namespaces.
# What a machine lacks is skipped with a printed reason.
set -euo pipefail
cd "$(dirname "$0")/../../.."
profile=dist target= check= dir=
while [ $# -gt 0 ]; do
    case $1 in
        --profile) profile=$2; shift 2 ;;
        --target) target=$2; shift 2 ;;
        --check) check=1; shift ;;
        -*) echo "release.sh: no such option: $1" >&2; exit 2 ;;
        *) [ -z "$dir" ] || { echo "release.sh: give one directory" >&2; exit 2; }; dir=$1; shift ;;
    esac
done
[ -n "$dir" ] || { echo "release.sh: give the directory for the files" >&2; exit 2; }
mkdir -p "$dir"
dir=$(realpath "$dir")
host=$(rustc -vV | sed -n 's/^host: //p')
arch=${host%%-*}
if [ -z "$target" ]; then
    target=$host
    musl=$arch-unknown-linux-musl
    [ -d "$(rustc --print sysroot)/lib/rustlib/$musl/lib" ] && command -v musl-gcc >/dev/null && target=$musl
fi
arch=${target%%-*}
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
out=${CARGO_TARGET_DIR:-target}
case $profile in dev) folder=debug ;; *) folder=$profile ;; esac

# Build scripts of the host are not affected by flags of the target, because the target is named.
variable=CARGO_TARGET_$(echo "$target" | tr 'a-z-' 'A-Z_')_RUSTFLAGS
env "$variable=-C target-feature=+crt-static" \
    cargo build --locked -p springtide --features command --bin springtide --profile "$profile" --target "$target"
program=$out/$target/$folder/springtide
if readelf -l "$program" 2>/dev/null | grep -q INTERP; then
    echo "release.sh: $program needs a dynamic linker" >&2
    exit 1
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
root=$scratch/root
mkdir -p "$root"/usr/{bin,lib/systemd/system,share/man/man1,share/bash-completion/completions,share/doc/springtide}
install -m 755 "$program" "$root/usr/bin/springtide"
strip "$root/usr/bin/springtide" 2>/dev/null || echo "skipped: strip does not know $target"
install -m 644 apps/springtide/packaging/*.service "$root/usr/lib/systemd/system/"
install -m 644 README.md CHANGELOG.md LICENSE-APACHE LICENSE-MIT "$root/usr/share/doc/springtide/"
{
    echo "Springtide is under the MIT licence or the Apache License 2.0, at your choice. The latter is in"
    echo "LICENSE-APACHE in this directory. The former:"
    echo
    cat LICENSE-MIT
} >"$root/usr/share/doc/springtide/copyright"
if "$root/usr/bin/springtide" version >/dev/null 2>&1; then
    "$root/usr/bin/springtide" man "$root/usr/share/man/man1" >/dev/null
    gzip -9n "$root"/usr/share/man/man1/*
    "$root/usr/bin/springtide" completions bash >"$root/usr/share/bash-completion/completions/springtide"
else
    echo "skipped: this machine does not run programs for $target: no man pages, no completions"
fi

name=springtide-$version-$target
tar --sort=name --owner=0 --group=0 --numeric-owner --transform "s,^\.,$name," -C "$root/usr" -czf "$dir/$name.tar.gz" .

if command -v dpkg-deb >/dev/null; then
    case $arch in x86_64) debian=amd64 ;; aarch64) debian=arm64 ;; *) debian=$arch ;; esac
    mkdir "$root/DEBIAN"
    cat >"$root/DEBIAN/control" <<CONTROL
Package: springtide
Version: $version
Architecture: $debian
Maintainer: The Springtide developers <springtide@localhost>
Installed-Size: $(du -ks "$root/usr" | cut -f1)
Section: science
Priority: optional
Description: divide-and-conquer and master-worker programs over several clusters
 Springtide runs programs over clusters that wide-area links join. A job adapts
 its set of nodes while it runs, and survives the loss of any of them.
CONTROL
    dpkg-deb --root-owner-group --build "$root" "$dir/springtide_${version}_$debian.deb" >/dev/null
    rm -r "$root/DEBIAN"
else
    echo "skipped: dpkg-deb is not installed: no Debian package"
fi

cargo metadata --locked --format-version 1 --filter-platform "$target" --features springtide/command >"$scratch/metadata.json"
if command -v python3 >/dev/null; then
    python3 - "$scratch/metadata.json" "$version" >"$dir/springtide-$version.cdx.json" <<'PYTHON'
import json, sys, uuid

metadata, version = json.load(open(sys.argv[1])), sys.argv[2]
packages = {package["id"]: package for package in metadata["packages"]}
nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
[root] = [id for id, package in packages.items() if package["name"] == "springtide"]
# What the program is linked with: no dependencies of tests or build scripts.
found, waiting = {}, [root]
while waiting:
    node = waiting.pop()
    if node not in found:
        deps = nodes[node]["deps"]
        found[node] = [dep["pkg"] for dep in deps if any(kind["kind"] is None for kind in dep["dep_kinds"])]
        waiting += found[node]


def purl(id):
    return f"pkg:cargo/{packages[id]['name']}@{packages[id]['version']}"


def component(id, kind="library"):
    package = packages[id]
    entry = {"type": kind, "bom-ref": purl(id), "name": package["name"], "version": package["version"], "purl": purl(id)}
    if package.get("license"):
        # Before SPDX expressions, a slash was the word for a choice.
        entry["licenses"] = [{"expression": " OR ".join(part.strip() for part in package["license"].split("/"))}]
    return entry


others = sorted((id for id in found if id != root), key=purl)
bill = {
    "bomFormat": "CycloneDX",
    "specVersion": "1.5",
    "version": 1,
    "metadata": {"component": component(root, "application")},
    "components": [component(id) for id in others],
    "dependencies": [{"ref": purl(id), "dependsOn": sorted(map(purl, found[id]))} for id in [root, *others]],
}
# The same crates have the same bill.
bill["serialNumber"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(bill))}"
print(json.dumps(bill, indent=1))
PYTHON
else
    echo "skipped: python3 is not installed: no bill of materials"
fi
(cd "$dir" && sha256sum springtide[-_]"$version"* >SHA256SUMS)

if [ -n "$check" ]; then
    empty=$scratch/empty
    mkdir -p "$empty"/{tmp,work}
    cp "$root/usr/bin/springtide" "$empty/springtide"
    if unshare -r true 2>/dev/null; then
        # No /proc, no /etc, no libraries: the program alone.
        unshare -r chroot "$empty" /springtide version
        unshare -r chroot "$empty" /springtide run queens --size 8 --sequential -q
    else
        echo "skipped: this machine allows no user namespaces: the program did not run in an empty root"
    fi
fi
ls -l "$dir"
