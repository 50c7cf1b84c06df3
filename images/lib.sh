# Shared by the scripts of this directory and by the end-to-end tests; sourced, not run.
# shellcheck shell=bash disable=SC2034  # variables for the scripts that source it

IMAGES=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
CACHE=${PORTOLAN_CACHE:-${XDG_CACHE_HOME:-${HOME:?}/.cache}/portolan}
PROGRAMS=(controller agent)

die() { echo "images: $*" >&2; exit 1; }
say() { echo "images: $*" >&2; }

# Sets ARCH (OCI's and Debian's name), TRIPLET (Debian's) and RUST_TARGET of the architecture $1.
set_architecture() {
    ARCH=$1
    case $1 in
        amd64) TRIPLET=x86_64-linux-gnu RUST_TARGET=x86_64-unknown-linux-gnu ;;
        arm64) TRIPLET=aarch64-linux-gnu RUST_TARGET=aarch64-unknown-linux-gnu ;;
        *) die "no images for the architecture $1: amd64 or arm64" ;;
    esac
}

# Prints "NAME VERSION SHA256" of each package in the list $1.
pinned() { grep -v '^#' "$1"; }

# Sets APT to the options of apt for the packages of the architecture $1. Another architecture than the machine's has
# lists of its own, fetched once a day, from the suites that the machine has.
set_apt() {
    APT=()
    [ "$1" != "$(dpkg --print-architecture)" ] || return 0
    local state=$CACHE/apt/$1
    mkdir -p "$state/lists/partial" "$state/archives/partial"
    APT=(-o "APT::Architecture=$1" -o "APT::Architectures=$1" -o "APT::Sandbox::User=root" -o "Dir::State::status=/dev/null"
        -o "Dir::State::lists=$state/lists" -o "Dir::Cache=$state" -o "Dir::Cache::archives=$state/archives")
    [ -n "$(find "$state/updated" -mmin -1440 2>/dev/null)" ] || {
        say "fetching the lists of packages for $1"
        apt-get "${APT[@]}" -qq update >&2 || die "cannot fetch the lists of packages for $1"
        touch "$state/updated"
    }
}

# Prints the path of a pinned package's file, which is fetched through apt once. The digest is checked each time.
fetch_package() {
    local list=$1 name=$2 version sha file arch=${1##*.}
    read -r _ version sha <<<"$(pinned "$list" | grep "^$name ")"
    [ -n "$sha" ] || die "${list##*/}: package $name is not pinned"
    file=$CACHE/debs/$sha.deb
    if [ ! -e "$file" ]; then
        local work
        set_apt "$arch"
        mkdir -p "$CACHE/debs"
        work=$(mktemp -d "$CACHE/debs/XXXXXX")
        # apt's own download user may not write into this directory.
        (cd "$work" && apt-get "${APT[@]}" -o APT::Sandbox::User=root -qq download "$name:$arch=$version" >&2) \
            || { rm -rf "$work"; die "${list##*/}: package $name $version is not in the configured suites: images/pin writes the list anew"; }
        mv "$work"/*.deb "$file"
        rm -rf "$work"
    fi
    [ "$(sha256sum <"$file" | cut -d' ' -f1)" = "$sha" ] || die "$file is not the package $name of ${list##*/}"
    echo "$file"
}

# Unpacks the package $2 of the list $1 into directory $3.
unpack_package() {
    local file
    file=$(fetch_package "$1" "$2")
    mkdir -p "$3"
    dpkg-deb -x "$file" "$3"
}

# Prints the value of a field of the manifest, config or index in an OCI archive's directory $1.
manifest_digest() { jq -r '.manifests[0].digest' "$1/index.json"; }
blob() { echo "$1/blobs/${2/://}"; }

# Unpacks the archive $1: the layout into $2/oci, the file system of its only layer into $2/root.
unpack_image() {
    local manifest
    mkdir -p "$2/oci" "$2/root"
    tar -C "$2/oci" -xf "$1"
    manifest=$(blob "$2/oci" "$(manifest_digest "$2/oci")")
    LAYER=$(blob "$2/oci" "$(jq -r '.layers[0].digest' "$manifest")")
    tar -C "$2/root" --zstd -xpf "$LAYER"
}
