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
run_as_user() { env HOME="$work/home" setpriv --reuid 65534 --clear-groups --regid 65534 "$@"; }
refuses() {
    local reason=$1
    shift
    ! run_as_user sh "$copy/install.sh" --prefix "$work/refused" "$@" >"$work/refusal" 2>&1 &&
        grep -q "$reason" "$work/refusal" && test ! -e "$work/refused/bin/peername"
}

echo "release: $release"
has_checksum() { (cd "$release" && [[ $(ls | grep -vc "^SHA256SUMS") = $(sha256sum --check SHA256SUMS | grep -c OK) ]]); }
check "each file has its checksum" has_checksum
check "the provenance names each file and the commit" python3 - "$release" "$(git rev-parse HEAD)" <<'EOF'
import hashlib, json, pathlib, sys
release, commit = pathlib.Path(sys.argv[1]), sys.argv[2]
statement = json.loads((release / "provenance.json").read_text())
for subject in statement["subject"]:
    content = (release / subject["name"]).read_bytes()
    assert hashlib.sha256(content).hexdigest() == subject["digest"]["sha256"], subject["name"]
named = {subject["name"] for subject in statement["subject"]}
assert named == {file.name for file in release.iterdir()} - {"SHA256SUMS", "SHA256SUMS.minisig", "provenance.json"}, named
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
chmod 755 "$work" && install -d -o 65534 "$work/prefix" "$work/refused"
shows_help() { sh "$copy/install.sh" --help | grep -q -- '--key-file'; }
check "install.sh shows its options" shows_help
check "install.sh takes a release that the key has signed" run_as_user $install --key-file "$work/key.pub"
check "what it installs runs" "$work/prefix/bin/peername" --version
check "install.sh takes the key as text" run_as_user $install --key "$(tail -n 1 "$work/key.pub")"
takes_slashes() { run_as_user env "PATH=$work/prefix/bin:$PATH" $install//./ >"$work/advice" && ! grep "not in PATH" "$work/advice"; }
check "install.sh takes a prefix with slashes at its end" takes_slashes
echo "../outside" >>"$work/prefix/share/peername/installed"
touch "$work/outside" && chown 65534 "$work/outside"
removes_nothing_else() { ! run_as_user $install --remove && test -e "$work/outside"; }
check "install.sh removes no file that is not its own" removes_nothing_else
check "install.sh installs over that" run_as_user $install
sed -i /outside/d "$work/prefix/share/peername/installed"
check "install.sh removes what it installed" run_as_user $install --remove
is_empty() { ! find "$work/prefix" -name '*peername*' | grep .; }
check "nothing is left" is_empty
refuses_root() { ! $install >"$work/refusal" 2>&1 && grep -q "others than root" "$work/refusal"; }
check "install.sh writes as root to no folder of another user" refuses_root
check "install.sh refuses another key" refuses "not signed by" --key-file "$work/other.pub"
check "install.sh refuses a folder without a release" refuses "is this the folder of a release" --from "$work/home"
check "install.sh needs a key for http" refuses "use https" --from http://127.0.0.1:9/
is_piped() { ! run_as_user sh -s -- --prefix "$work/refused" <"$copy/install.sh" 2>"$work/refusal" && grep -q "from is missing" "$work/refusal"; }
check "install.sh from a pipe needs --from" is_piped
for archive in "$copy"/peername-*.tar.gz; do echo >>"$archive"; done
check "install.sh refuses an archive that was changed" refuses "the checksum is another"
packaging/checksums.sh "$copy" "$work/key" && echo >>"$copy/SHA256SUMS"
check "install.sh refuses checksums that were changed" refuses "not signed by" --key-file "$work/key.pub"

for package in "$release"/peername_*.deb; do
    check "lintian has nothing to say about $(basename "$package")" lintian --fail-on error,warning "$package"
done
[[ -z $failed ]]
