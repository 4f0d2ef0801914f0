#!/usr/bin/env python3
"""Checks the Markdown pages: lines of at most 100 columns, and links to files and headings that exist.

Tables, code, headings and single words that are longer are exempt from the first check. `--wrap` fills the paragraphs that
have a longer line.
"""

import os
import re
import subprocess
import sys

COLUMNS = 100
ITEM = re.compile(r"( *)([-*]|\d+\.) +")
# A word that must not begin a line: it would begin a list, a heading, a quotation or a table there.
BEGINS_BLOCK = re.compile(r"([-+*>]|\d+[.)]|#+|\|.*|=+|-+)$")
# Words; code and links are not broken.
WORD = re.compile(r"(?:`+[^`]*`+|!?\[[^\]]*\]\([^)]*\)|[^\s`])+")


def blocks(lines):
    """Yields (lines, whether they are a paragraph)."""
    paragraph, fence, code = [], None, False
    for line in lines:
        stripped = line.strip()
        was_code, code = code, False
        if fence or stripped.startswith("```"):
            ends = fence and stripped == fence
            fence = None if ends else fence or "```"
            kind = None
        elif not stripped:
            kind, code = None, was_code
        elif line.startswith("    ") and (was_code or not paragraph):
            kind, code = None, True
        elif re.match(r"\||#|<|\[[^\]]+\]: |!\[", stripped):
            kind = None
        else:
            kind = "text"
        if paragraph and (kind is None or ITEM.match(line)):
            yield paragraph, True
            paragraph = []
        if kind is None:
            yield [line], False
        else:
            paragraph.append(line)
    if paragraph:
        yield paragraph, True


def is_long(lines):
    return any(len(line) > COLUMNS and " " in line.strip() for line in lines)


def fill(lines):
    item = ITEM.match(lines[0])
    first = item[0] if item else re.match(" *", lines[0])[0]
    rest = " " * len(first)
    text = " ".join(line.strip() for line in lines)
    words = WORD.findall(text[len(first.strip()):])
    result, current = [], first + words[0]
    for word in words[1:]:
        if len(current) + 1 + len(word) > COLUMNS and not BEGINS_BLOCK.match(word):
            result.append(current)
            current = rest + word
        else:
            current += " " + word
    return result + [current]


def wrap(text):
    result = []
    for lines, is_paragraph in blocks(text.split("\n")):
        result += fill(lines) if is_paragraph and is_long(lines) else lines
    return "\n".join(result)


def anchors(text):
    found = set()
    for lines, _ in blocks(text.split("\n")):
        if heading := re.match(r"#+ (.*)", lines[0]):
            title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).lower()
            found.add(re.sub(r"[^\w\- ]", "", title).replace(" ", "-"))
    return found


def broken_links(path, text):
    prose = "\n".join(lines[0] if not is_text else "\n".join(lines) for lines, is_text in blocks(text.split("\n")))
    prose = re.sub(r"`[^`]*`", "", prose)
    for target in re.findall(r"\]\(([^)\s]+)\)", prose) + re.findall(r"^\[[^\]]+\]: (\S+)", prose, re.MULTILINE):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        file = os.path.normpath(os.path.join(os.path.dirname(path), file)) if file else path
        if not os.path.exists(file):
            yield f"{path}: {target}: there is no such file"
        elif anchor and file.endswith(".md"):
            with open(file, encoding="utf-8") as page:
                if anchor not in anchors(page.read()):
                    yield f"{path}: {target}: there is no such heading"


def main():
    listed = subprocess.run(["git", "ls-files", "*.md"], capture_output=True, text=True, check=True)
    faults = []
    for path in listed.stdout.split():
        with open(path, encoding="utf-8") as file:
            text = file.read()
        if wrap(text) != text:
            if "--wrap" in sys.argv:
                with open(path, "w", encoding="utf-8") as file:
                    file.write(wrap(text))
            else:
                faults.append(f"{path}: lines of more than {COLUMNS} columns (checks/markdown.py --wrap)")
        faults += broken_links(path, text)
    print("\n".join(faults), end="\n" if faults else "")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
