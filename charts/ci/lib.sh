# shellcheck shell=bash
# Shared by the scripts that check the chart.
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
chart=$top/charts/portolan

# Sets `tools` and `helm3`: the directories of the programs, which are built once.
find_tools() {
  tools=$("$top/e2e/tools/build" chart | tail -n 1)
  helm3=$("$top/e2e/tools/build" helm3 | tail -n 1)
  export tools helm3
}

# Prints the flags of helm that a file of values needs: the line `# flags: ...`.
flags_of() { sed -n 's/^# flags: //p' "$1"; }

# Renders the chart with a file of values: render FILE [FLAG...].
render() {
  local file=$1
  shift
  # The flags are words.
  # shellcheck disable=SC2046
  "$tools/helm" template p "$chart" -n kube-system --kube-version 1.36.0 $(flags_of "$file") -f "$file" "$@"
}

# The files of values.
values() { printf '%s\n' "$chart"/ci/*-values.yaml; }

# Prints the arguments of a container in a manifest: arguments FILE CONTAINER.
arguments() {
  awk -v name="$2" '$0 ~ "^ +- name: " name "$" {on = 1}
    on && /^ +args:$/ {list = 1; next}
    list && /^ +- / {sub(/^ +- /, ""); gsub(/"/, ""); print; next}
    list {exit}' "$1"
}
