#!/usr/bin/env python3
"""Lists words that make a comment hard to search or to read, each with a better one.

It reads the comments of Rust and C, and the Markdown pages. A line that ends with `(people)` is exempt, and so are the files
in EXEMPT.
"""

import re
import subprocess
import sys

# Each word with its replacement. Only words that were wrong nearly every time.
RULES = [
    (r"\b(nobody|somebody|everybody)\b", "name the subject: no client, a process, every peer"),
    (r"\b(whoever|whosoever)\b", "name the subject: the caller, the peer, the process that"),
    (r"\boctets?\b", "bytes, except where a specification is quoted"),
]
# Files in which a rule's word is right: texts that scripts match, specifications, history.
EXEMPT = {
    "CHANGELOG.md",
    "checks/words.py",
    "docs/migrate.md",
}
COMMENT = re.compile(r"^\s*(//[/!]?|\*|/\*)\s?(.*)$")


def prose(path):
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if path.endswith(".md"):
                yield number, re.sub(r"`[^`]*`", "", line)
            elif match := COMMENT.match(line):
                yield number, re.sub(r"`[^`]*`", "", match[2])


def main():
    listed = subprocess.run(
        ["git", "ls-files", "*.rs", "*.c", "*.h", "*.md"], capture_output=True, text=True, check=True
    )
    found = False
    for path in listed.stdout.split():
        if path in EXEMPT:
            continue
        for number, text in prose(path):
            if text.rstrip().endswith("(people)"):
                continue
            for pattern, instead in RULES:
                if match := re.search(pattern, text, re.IGNORECASE):
                    print(f"{path}:{number}: {match[0]!r}: {instead}")
                    found = True
    return found


if __name__ == "__main__":
    sys.exit(main())
