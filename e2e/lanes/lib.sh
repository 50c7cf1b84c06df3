# Shared by the scripts of this directory; sourced, not run.
# shellcheck shell=bash disable=SC2034  # variables for the scripts that source it

# True if tests that need IPVS can run on this machine's own kernel.
host_has_ipvs() {
    [ -e /proc/net/ip_vs ] || modprobe -q ip_vs 2>/dev/null
}

# True if this machine's own kernel takes a rule of nftables that masquerades; nothing is changed.
host_has_nftables() {
    nft --check 'table ip portolan-lane { chain post { type nat hook postrouting priority 99; masquerade fully-random; }; }' 2>/dev/null
}

cache() { echo "${PORTOLAN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/portolan}"; }

# Where unpacked guest kernels are kept, one directory for each version.
kernel_cache() { echo "$(cache)/kernel"; }

# Where kernels of User Mode Linux that kernel/build has built are kept, one directory for each configuration.
uml_cache() { echo "$(cache)/uml"; }

# Place of the kernel that kernel/build makes, built or not. Comments make no other kernel, but options that are off do.
uml_target() {
    local kernel
    kernel=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/kernel
    echo "$(uml_cache)/$(grep -hE '^# CONFIG_|^ *[^# ]' "$kernel/config" "$kernel/build" | sha256sum | cut -c1-12)"
}

# Prints the path of the kernel for User Mode Linux guests: PORTOLAN_UML_KERNEL, that of kernel/build, or the package's;
# fails if there is none.
uml_kernel() {
    local built
    built=$(uml_target)/linux
    if [ -n "${PORTOLAN_UML_KERNEL:-}" ]; then
        echo "$PORTOLAN_UML_KERNEL"
    elif [ -x "$built" ]; then
        echo "$built"
    else
        command -v linux.uml
    fi
}

# True if guests run the package's kernel: it is slow, and has no nftables for IPv4.
uml_is_packaged() {
    local kernel
    kernel=$(uml_kernel) && [ "${kernel##*/}" = linux.uml ]
}

# The library that the package's kernel runs with: see xstate.c.
xstate_library() { echo "$(cache)/xstate.so"; }

# Prints the directory of the newest unpacked cloud kernel; fails if there is none.
cloud_kernel() {
    local newest
    newest=$(find "$(kernel_cache)" -mindepth 2 -maxdepth 2 -name vmlinuz 2>/dev/null | sort -V | tail -n 1)
    [ -n "$newest" ] && dirname "$newest"
}

# Prints the path of virtiofsd, which distributions keep off the PATH.
find_virtiofsd() {
    local path
    for path in /usr/libexec/virtiofsd /usr/lib/qemu/virtiofsd; do
        [ -x "$path" ] && echo "$path" && return
    done
    return 1
}

# The variables of the caller's environment that a command in a guest sees.
PASSED_ON='^(PATH|HOME|LANG|LD_LIBRARY_PATH|CI|KUBEBUILDER_ASSETS|GODEBUG|GOMAXPROCS'
PASSED_ON+='|(RUST|CARGO|PORTOLAN|PROPTEST)_.*)$'

# Sets DIRECTORY, a new one for the files of one guest of the lane $1, removed at exit. A runner that was
# killed could not remove its own: the next one does.
make_directory() {
    local left owner
    for left in /tmp/portolan-guest.*; do
        owner=${left#*.}
        owner=${owner%%.*}
        [ -d "$left" ] && ! kill -0 "$owner" 2>/dev/null && rm -rf "$left"
    done
    DIRECTORY=$(mktemp -d "/tmp/portolan-guest.$$.$1.XXXXXX") || exit 125
    trap 'rm -rf "$DIRECTORY"' EXIT
}

# Writes the input of the guest's init (guest-init) into DIRECTORY: the command "$2..." as a shell
# script in the caller's directory and environment, for the lane $1.
write_guest_command() {
    local lane=$1 name names values=()
    shift
    mapfile -t names < <(compgen -e | grep -E "$PASSED_ON")
    {
        for name in "${names[@]}"; do
            printf 'export %s=%q\n' "$name" "${!name}"
            values+=("${!name}")
        done
        printf 'export PORTOLAN_LANE=%q\n' "$lane"
        # shellcheck disable=SC2016  # the guest expands it
        echo 'PATH=/run/portolan-bin:$PATH'
        printf 'cd %q || exit 125\n' "$PWD"
        printf 'exec'
        printf ' %q' "$@"
        printf '\n'
    } >"$DIRECTORY/command"
    # A /tmp of the guest's own is fast and clean, unless the command refers to a path there.
    none_below_tmp "$PWD" "$@" "${values[@]}" && : >"$DIRECTORY/private-tmp"
    ln -s "$LANES/guest-init" "$DIRECTORY/init"
}

# True if no word is a path below /tmp.
none_below_tmp() {
    local word
    for word in "$@"; do
        case "$word" in /tmp/*) return 1 ;; esac
    done
}

# Runs "$@" as the parent of everything the guest consists of: in a PID namespace of its own, which the
# kernel empties when its first process dies, whatever sessions or helper processes the guest made.
# The guest is not itself that first process, whose signals the kernel treats specially: it must be able
# to abort. Each link of the chain dies with the one before it, so killing this script with SIGKILL is enough too.
# Sets GUEST, the process to kill or to wait for.
start_guest() {
    setpriv --pdeathsig KILL timeout -s KILL "${PORTOLAN_GUEST_TIMEOUT:-600}" \
        setpriv --pdeathsig KILL unshare --pid --fork --kill-child --mount-proc -- \
        bash -c '"$@"; exit' first-process "$@" &
    GUEST=$!
    trap 'interrupted 130' INT
    trap 'interrupted 143' TERM HUP
}

interrupted() {
    kill -KILL "$GUEST" 2>/dev/null
    # For the readers of its output too: they end when the guest's last process has gone.
    wait 2>/dev/null
    exit "$1"
}

# Waits for the guest's end and sets STATUS, to exit with: the command's if the guest wrote it down, 124 if
# the deadline passed, else 125.
await_guest() {
    local ended=0
    wait "$GUEST" 2>/dev/null || ended=$?
    # The last output: readers end when the guest's last process has gone.
    wait
    if [ -s "$DIRECTORY/status" ]; then
        STATUS=$(cat "$DIRECTORY/status")
    elif [ "$ended" = 137 ]; then
        echo "${0##*/}: killed after ${PORTOLAN_GUEST_TIMEOUT:-600} s" >&2
        STATUS=124
    else
        echo "${0##*/}: the guest did not finish; its console:" >&2
        tail -n 20 "$DIRECTORY/console" >&2
        STATUS=125
    fi
}
