#!/usr/bin/env python3
"""Fails on an import cycle between the modules of one crate, and on a folder with too many modules.

Modules are files below src/; an edge is a path in a `use` or in an expression that begins with crate, self, super or a
child module. Macros are not expanded, and test modules are left out: they see all of their crate.
"""

import os
import re
import sys

MAX_MODULES = 15


def modules(src):
    """Maps the path of each module, as a tuple of names, to its file."""
    found = {}
    for folder, _, files in os.walk(src):
        for file in files:
            if file.endswith(".rs"):
                path = os.path.join(folder, file)
                names = os.path.relpath(path, src)[: -len(".rs")].split(os.sep)
                if names[-1] in ("lib", "main"):
                    names.pop()
                found[tuple(names)] = path
    return found


def use_paths(tree):
    """Lists the paths of a use tree such as `a::{b, c::d}`."""
    tree = tree.strip()
    brace = tree.find("{")
    if brace < 0:
        return [tree.split(" as ")[0].strip()]
    prefix, body = tree[:brace], tree[brace + 1 : tree.rfind("}")]
    parts, depth, part = [], 0, ""
    for char in body:
        depth += (char == "{") - (char == "}")
        if char == "," and depth == 0:
            parts.append(part)
            part = ""
        else:
            part += char
    if part.strip():
        parts.append(part)
    return [prefix + path for part in parts for path in use_paths(part)]


def imports(module, file, all_modules):
    with open(file, encoding="utf-8") as source:
        text = re.sub(r"//.*|\bpub\(in [^)]*\)", "", source.read())
    text = re.split(r"#\[cfg\(test\)\]\s*(?:pub(?:\(\w+\))?\s+)?mod \w+ \{", text)[0]
    # A re-export counts, too: a reader of the one module has to know the other.
    uses = re.compile(r"(?m)^\s*(?:pub(?:\(\w+\))?\s+)?use ([^;]+);")
    paths = [p for tree in uses.findall(text) for p in use_paths(tree)]
    body = uses.sub("", text)
    paths += re.findall(r"\b((?:crate|super|self)(?:::\w+)+)", body)
    children = [names[-1] for names in all_modules if names and names[:-1] == module]
    paths += [f"{child}::" for child in children if re.search(rf"(?<![\w:]){child}::", body)]
    for path in paths:
        names = [name.strip() for name in path.split("::") if name.strip()]
        base = list(module)
        if names[0] == "crate":
            base, names = [], names[1:]
        elif names[0] == "self":
            names = names[1:]
        elif names[0] == "super":
            while names and names[0] == "super":
                base, names = base[:-1], names[1:]
        elif tuple(base + names[:1]) not in all_modules:
            continue
        full = base + names
        for length in range(len(full), 0, -1):
            target = tuple(full[:length])
            if target in all_modules:
                if target != module:
                    yield target
                break


def cycles(graph):
    """Tarjan's strongly connected components with more than one member."""
    index, low, stack, result = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in graph[node]:
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            component = []
            while not component or component[-1] != node:
                component.append(stack.pop())
            if len(component) > 1:
                result.append(component)

    for node in graph:
        if node not in index:
            visit(node)
    return result


def check(crate):
    src = os.path.join(crate, "src")
    found = modules(src)
    graph = {
        module: set(imports(module, file, found))
        for module, file in found.items()
        if "tests" not in module
    }
    for targets in graph.values():
        targets &= graph.keys()
    problems = []
    for component in cycles(graph):
        problems.append(f"{crate}: an import cycle of {len(component)} modules:")
        for module in sorted(component):
            for target in sorted(graph[module] & set(component)):
                problems.append(f"    {'::'.join(module) or 'crate'} uses {'::'.join(target) or 'crate'}")
    for folder, _, files in os.walk(src):
        count = sum(file.endswith(".rs") for file in files)
        if count > MAX_MODULES:
            problems.append(f"{folder}: {count} modules, more than {MAX_MODULES}: group them")
    return problems


def main():
    sys.setrecursionlimit(10_000)
    problems = [problem for crate in sys.argv[1:] for problem in check(crate)]
    print("\n".join(problems), end="\n" if problems else "")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
