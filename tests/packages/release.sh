#!/bin/bash
# Tests a release as a whole: checksums, provenance, signature, and what install.sh refuses. Argument: its folder.
set -euo pipefail
release=$(realpath "$1")
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=
check() {
    local what=$1
    shift
    if "$@" >"$work/output" 2>&1; then echo "  ok   $what"; else
        echo "  FAIL $what: $*"
        sed 's/^/       /' "$work/output"
        failed=1
    fi
}
refuses() {
    local reason=$1
    shift
    ! sh "$copy/install.sh" --prefix "$work/refused" "$@" >"$work/refusal" 2>&1 &&
        grep -q "$reason" "$work/refusal" && test ! -e "$work/refused/bin/peername"
}

echo "release: $release"
has_checksum() { (cd "$release" && [[ $(ls | grep -cv SHA256SUMS) = $(sha256sum --check SHA256SUMS | grep -c OK) ]]); }
check "each file has its checksum" has_checksum
check "the provenance names each file and the commit" python3 - "$release" "$(git rev-parse HEAD)" <<'EOF'
import hashlib, json, pathlib, sys
release, commit = pathlib.Path(sys.argv[1]), sys.argv[2]
statement = json.loads((release / "provenance.json").read_text())
for subject in statement["subject"]:
    content = (release / subject["name"]).read_bytes()
    assert hashlib.sha256(content).hexdigest() == subject["digest"]["sha256"], subject["name"]
named = {subject["name"] for subject in statement["subject"]}
assert named | {"SHA256SUMS", "provenance.json"} == {file.name for file in release.iterdir()}, named
assert statement["predicateType"] == "https://slsa.dev/provenance/v1"
source = statement["predicate"]["buildDefinition"]["resolvedDependencies"][0]
assert source["digest"]["gitCommit"] == commit, "built from another commit: make dist"
EOF

copy=$work/copy
cp -r "$release" "$copy"
minisign -G -W -p "$work/key.pub" -s "$work/key" >/dev/null
minisign -G -W -p "$work/other.pub" -s "$work/other" >/dev/null
check "the checksums can be signed" packaging/checksums.sh "$copy" "$work/key"
install="sh $copy/install.sh --prefix $work/prefix"
run_as_user() { env HOME="$work/home" setpriv --reuid 65534 --clear-groups --regid 65534 "$@"; }
chmod 755 "$work" && install -d -o 65534 "$work/prefix" "$work/refused"
check "install.sh takes a release that the key has signed" run_as_user $install --key "$work/key.pub"
check "what it installs runs" "$work/prefix/bin/peername" --version
check "install.sh takes the key as text" run_as_user $install --key "$(tail -n 1 "$work/key.pub")"
check "install.sh removes what it installed" run_as_user $install --remove
is_empty() { ! find "$work/prefix" -type f | grep .; }
check "nothing is left" is_empty
check "install.sh refuses another key" refuses "not signed by" --key "$work/other.pub"
check "install.sh refuses a folder without a release" refuses "is this the folder of a release" --from "$work/home"
for archive in "$copy"/peername-*.tar.gz; do echo >>"$archive"; done
check "install.sh refuses an archive that was changed" refuses "the checksum is another"

for package in "$release"/peername_*.deb; do
    check "lintian has nothing to say about $(basename "$package")" lintian --fail-on error,warning "$package"
done
[[ -z $failed ]]
