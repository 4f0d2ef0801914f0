#!/bin/bash
# Runs every test and reports where the time went. A step fails, too, if its tests leave anything behind (leftovers.py).
# Argument: how many black-box tests run at once.
set -euo pipefail

threads=${1:-4}
times=$(mktemp)
output=$(mktemp)
failures=$(mktemp)
trap 'rm -f "$times" "$output" "$failures"' EXIT
export PEERNAME_TEST_TIMES=$times

step() {
    local name=$1 start=$SECONDS
    shift
    echo "test: $name"
    "$@" 2>&1 | tee "$output" || {
        failed+=("$name")
        sed -n '/^failures:$/,$p; /^test: left behind/p' "$output" >> "$failures"
    }
    steps+=("$(printf '%5d s  %s' $((SECONDS - start)) "$name")")
}

steps=()
failed=()
step "build" cargo test --workspace --locked --no-run --quiet
[[ ${#failed[@]} -eq 0 ]] || exit 1
step "everything in one process" tests/leftovers.py cargo test --workspace --locked --quiet --no-fail-fast --lib --bins
step "documentation examples" tests/leftovers.py cargo test --workspace --locked --quiet --doc
step "integration and black box" tests/leftovers.py cargo test --workspace --locked --quiet --no-fail-fast --test '*' -- \
    --test-threads "$threads"
# The containers' control groups outlive their processes.
find /sys/fs/cgroup -depth -path '*/peername-tests*' -type d -exec rmdir {} + 2>/dev/null || true

printf '\nWhere the time went:\n'
printf '%s\n' "${steps[@]}"
printf '\nThe slowest black-box tests:\n'
sort -rn "$times" | sed -n 1,10p

if [[ ${#failed[@]} -gt 0 ]]; then
    # Once more at the end, where a reader of a long log looks first.
    printf '\nWhat failed:\n'
    tail -n 150 "$failures"
    printf '\ntest: FAILED: %s\n' "${failed[@]}"
    exit 1
fi
