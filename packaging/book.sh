#!/bin/bash
# Builds the pages as a book with a search: packaging/book.sh MDBOOK INTO [PROGRAM]. The order is that of the links of
# docs/index.md; the help of PROGRAM's commands is the reference at the end.
set -euo pipefail
mdbook=$(realpath "$1") into=$(realpath --canonicalize-missing "$2") program=${3:+$(realpath "$3")}
cd "$(dirname "$0")/.."

book=$(mktemp --directory)
trap 'rm -rf "$book"' EXIT
mkdir "$book/src"
# The pages, and the files that they link.
cp --parents --recursive ./*.md bench/README.md docs LICENSE-* crates/sys/src/seccomp/jail/table.rs \
    packaging/examples/docker "$book/src"
cat >"$book/book.toml" <<'TOML'
[book]
title = "peername"
language = "en"

[output.html]
no-section-label = true
TOML

# A heading of the index is a part, each page that it links a chapter, once.
{
    echo "[peername](README.md)"
    echo "[The pages, by question and by role](docs/index.md)"
    awk '
        /^## / { part = substr($0, 4) }
        {
            line = $0
            while (match(line, /\]\([A-Za-z0-9_.\/-]+\.md\)/)) {
                page = substr(line, RSTART + 2, RLENGTH - 3)
                line = substr(line, RSTART + RLENGTH)
                page = page ~ /^\.\.\// ? substr(page, 4) : "docs/" page
                if (page in seen) continue
                seen[page] = 1
                if (part != printed) print "\n# " part "\n"
                printed = part
                title = page
                while ((getline heading <page) > 0)
                    if (heading ~ /^# /) { title = substr(heading, 3); break }
                close(page)
                gsub(/[][`]/, "", title)
                print "- [" title "](" page ")"
            }
        }' docs/index.md
} >"$book/src/SUMMARY.md"

# A chapter for each command, of which each has a manual page.
if [[ -n $program ]]; then
    mkdir "$book/man" "$book/src/reference"
    "$program" man "$book/man"
    printf '\n# Reference\n\n' >>"$book/src/SUMMARY.md"
    for page in "$book"/man/peername-*.1; do
        name=$(basename "$page" .1)
        read -ra command <<<"$(sed 's/^peername-//; s/-/ /g' <<<"$name")"
        printf '# peername %s\n\n```text\n%s\n```\n' "${command[*]}" "$(COLUMNS=100 "$program" "${command[@]}" --help)" \
            >"$book/src/reference/$name.md"
        echo "- [peername ${command[*]}](reference/$name.md)" >>"$book/src/SUMMARY.md"
    done
fi
# mdBook makes an index.html of each README.md, but does not change the links to it.
mv "$book/src/bench/README.md" "$book/src/bench/benchmarks.md"
sed -i "s#bench/README\.md#bench/benchmarks.md#g" "$book"/src/*.md "$book"/src/docs/*.md
"$mdbook" build "$book" --dest-dir "$into"
echo "$into/index.html"
