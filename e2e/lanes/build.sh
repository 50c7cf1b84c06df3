# Shared by the scripts that run test files; sourced, not run.
# shellcheck shell=bash

# Builds programs and tests with the features of the whole workspace, so that every dependency is built once, and
# writes "KIND NAME DIRECTORY EXECUTABLE" of each test into the file `tests` of the directory $1.
build_tests() {
    cargo build --workspace --all-features --bins --tests --message-format=json-render-diagnostics >"$1/build" || return
    grep -a '"executable":"' "$1/build" | grep -a '"test":true' | sed -nE \
        's|.*"manifest_path":"([^"]*)/Cargo.toml","target":\{"kind":\["([a-z-]+)"\].*"name":"([^"]+)".*"profile":\{[^}]*"test":true.*"executable":"([^"]+)".*|\2 \3 \1 \4|p' \
        | sort -u >"$1/tests"
}
