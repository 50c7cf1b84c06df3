# The files of images of pods, from Debian's packages; sourced, not run. It needs images/lib.sh.
# shellcheck shell=bash

# Makes the root directory $1 with the packages of the lists $2 and so on, busybox's applets where they have no such
# program, and users, groups and directories.
make_root() {
    local root=$1 list package applet
    shift
    mkdir -p "$root"
    # Links of the merged /usr, as Debian has them: packages have files below both names.
    mkdir -p "$root"/usr/{bin,sbin,lib,lib64}
    for package in bin sbin lib lib64; do ln -s "usr/$package" "$root/$package"; done
    for list in "$@"; do
        while read -r package _; do
            dpkg-deb --fsys-tarfile "$(fetch_package "$list" "$package")" |
                tar -C "$root" --keep-directory-symlink --exclude='./usr/share/doc*' --exclude='./usr/share/man*' \
                    --exclude='./usr/share/locale*' --exclude='./usr/share/bash-completion*' --exclude='*/gconv/*' -xf -
        done < <(pinned "$list")
    done
    for applet in nc netcat; do ln -sf nc.openbsd "$root/bin/$applet"; done
    # busybox's wget crashes (1.35.0), so that of the package wget goes before it.
    while read -r applet; do
        [ -e "$root/bin/$applet" ] || [ -L "$root/bin/$applet" ] || [ -e "$root/sbin/$applet" ] || ln -s busybox "$root/bin/$applet"
    done < <("$root/bin/busybox" --list)
    mkdir -p "$root"/{tmp,var/tmp,run,proc,sys,dev,root,home,etc}
    chmod 1777 "$root/tmp" "$root/var/tmp"
    printf '%s\n' root:x:0:0:root:/root:/bin/sh nobody:x:65534:65534:nobody:/:/bin/false >"$root/etc/passwd"
    printf '%s\n' root:x:0: nogroup:x:65534: >"$root/etc/group"
    echo 'hosts: files dns' >"$root/etc/nsswitch.conf"
}

# Writes the image localhost/coredns:e2e of the program $1 into the archive $2, by way of the directory $3.
write_coredns_image() {
    mkdir -p "$3"
    cp "$1" "$3/"
    echo '{"Entrypoint": ["/coredns"]}' | "$IMAGES/oci" "$3" "$2" localhost/coredns:e2e "$ARCH" >&2
}
