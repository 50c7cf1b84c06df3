# Shared by the scripts of this directory; sourced, not run.
# shellcheck shell=bash

# with_root LOWER COMMAND...: runs a command with a writable copy of a root at $ROOT, in mount and process namespaces
# that end with it. LOWER is one directory, or several with colons between, the uppermost first.
with_root() {
  local lower=$1 directory status=0
  shift
  directory=$(mktemp -d /var/tmp/portolan-package.XXXXXX)
  mkdir "$directory/upper" "$directory/work" "$directory/root"
  ROOT=$directory/root unshare --mount --pid --fork --kill-child bash -euc '
    mount -t overlay overlay -o "lowerdir=$0,upperdir=$1/upper,workdir=$1/work" "$ROOT"
    mount -t proc proc "$ROOT/proc"
    shift
    "$@"' "$lower" "$directory" "$@" || status=$?
  rm -rf "$directory"
  return "$status"
}
