#!/usr/bin/env python3
"""Boots Debian's kernels under QEMU, runs a few black-box tests of each feature in them, and writes docs/kernels.md.

A guest has the host's file system, read-only below a tmpfs, so that it has every program that the tests drive; only its
kernel and modules come from Debian's packages, which are downloaded and unpacked, never installed. `/dev/kvm` is used
where it works. Without it a boot takes a quarter of a minute, and everything else about ten times as long.

Usage: tests/kernels/run.py [RELEASE ...] [--tests NAME ...] [--limit SECONDS]
RELEASE is the beginning of a kernel's release, such as 6.1; all by default. With --tests it runs these tests instead, on the
guests only, prints what they print, and leaves the page as it is. --limit is how long the tests of one feature may take; a guest
as a whole may take as long for each of them.
Exit code: 1 if a test fails whose feature `doctor` calls available.
"""

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target")).resolve()
WORK = TARGET / "kernels"
# The suites of Debian 12 that have its own kernel, and the kernel of Debian 13.
KERNELS = {"6.1": "bookworm", "6.12": "bookworm-backports"}
SOURCES = """\
deb http://deb.debian.org/debian bookworm main
deb http://deb.debian.org/debian-security bookworm-security main
deb http://deb.debian.org/debian bookworm-backports main
"""
# The modules for mounting the root file system; loaded with their dependencies.
BOOT_MODULES = ["virtio_pci", "9pnet_virtio", "9p", "overlay"]
# Seconds for boot and tests, with KVM and without.
LIMIT, LIMIT_EMULATED = 600, 1500
# Seconds for a boot, without KVM.
BOOT_LIMIT = 120
# Seconds for the tests of a feature.
FEATURE_LIMIT = 400
# What a kernel prints when it is broken.
BROKEN = re.compile(r"\b(BUG|WARNING|Oops|general protection fault)\b:?.*")


def main():
    options = argparse.ArgumentParser()
    options.add_argument("releases", nargs="*", choices=[*KERNELS, []])
    options.add_argument("--tests", nargs="+")
    options.add_argument("--limit", type=int)
    options = options.parse_args()
    features = tomllib.loads((HERE / "features.toml").read_text())["feature"]
    if options.tests:
        features = [{"name": test, "tests": [test]} for test in options.tests]
    WORK.mkdir(parents=True, exist_ok=True)
    binaries = build()
    reports = [
        boot(version, unpack(version, suite), features, binaries, options.limit)
        for version, suite in KERNELS.items()
        if not options.releases or version in options.releases
    ]
    if options.tests:
        for path in sorted(WORK.glob("share-*/[0-9]*.log")):
            print(f"--- {path}\n{text(path)}")
    else:
        reports.append(run_here(features, binaries))
    failed = [problem for report in reports for problem in report["problems"]]
    for problem in failed:
        print(f"kernels: {problem}")
    if failed:
        sys.exit(1)
    if not options.tests:
        write_page(features, reports)


def build():
    """Builds the tests, and returns the paths of their program and of peername."""
    # As `make test` builds them, so that one build serves both.
    command = ["cargo", "test", "--workspace", "--locked", "--no-run", "--message-format=json"]
    listed = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, check=True).stdout
    found = {}
    for line in listed.splitlines():
        message = json.loads(line)
        if message.get("executable"):
            found[message["target"]["name"]] = message["executable"]
    subprocess.run(["make", "--quiet", "libraries"], cwd=REPOSITORY, check=True)
    return {"E2E": found["e2e"], "PEERNAME": str(TARGET / "debug/peername"), "REPOSITORY": str(REPOSITORY)}


def unpack(version, suite):
    """Downloads the newest kernel of a suite, and returns the folder of its files."""
    apt = ["-o", f"Dir::Etc::sourcelist={WORK}/sources.list", "-o", "Dir::Etc::sourceparts=-"]
    apt += ["-o", f"Dir::State::Lists={WORK}/lists", "-o", f"Dir::Cache={WORK}/cache", "-o", "APT::Sandbox::User=root"]
    if not (WORK / "lists").exists():
        (WORK / "sources.list").write_text(SOURCES)
        (WORK / "lists").mkdir()
        (WORK / "cache").mkdir(exist_ok=True)
        subprocess.run(["apt-get", *apt, "--quiet", "--quiet", "update"], check=True)
    # linux-image-amd64 depends on the package of the newest release.
    metapackage = subprocess.run(
        ["apt-cache", *apt, "show", "linux-image-amd64"], stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    package = re.search(rf"Depends: (linux-image-{re.escape(version)}\.\S+)", metapackage)[1]
    folder = WORK / package
    if not folder.exists():
        print(f"kernels: downloading {package}")
        subprocess.run(["apt-get", *apt, "--quiet", "--quiet", "download", package], cwd=WORK, check=True)
        [archive] = WORK.glob(f"{package}_*.deb")
        subprocess.run(["dpkg", "--extract", archive, folder], check=True)
        archive.unlink()
        [modules] = (folder / "lib/modules").iterdir()
        subprocess.run(["depmod", "--basedir", folder, modules.name], check=True)
    return folder


def initramfs(folder, release):
    """Packs busybox, the modules that mount the root, and init.sh; returns the archive's path."""
    root = folder / "initramfs"
    shutil.rmtree(root, ignore_errors=True)
    (root / "boot-modules").mkdir(parents=True)
    if "dynamically linked" in subprocess.run(["file", "-L", "/bin/busybox"], stdout=subprocess.PIPE, text=True).stdout:
        sys.exit("kernels: /bin/busybox needs a C library, which an initramfs lacks: apt-get install busybox-static")
    shutil.copy("/bin/busybox", root / "busybox")
    shutil.copy(HERE / "init.sh", root / "init")
    order = []
    for module in BOOT_MODULES:
        shown = subprocess.run(
            ["modprobe", "--dirname", folder, "--set-version", release, "--show-depends", module],
            stdout=subprocess.PIPE, text=True, check=True,
        ).stdout
        order += [Path(line.split()[1]) for line in shown.splitlines() if line.startswith("insmod")]
    names = []
    for path in dict.fromkeys(order):
        name = path.name.removesuffix(".xz")
        target = root / "boot-modules" / name
        if path.suffix == ".xz":
            target.write_bytes(subprocess.run(["xz", "-dc", path], stdout=subprocess.PIPE, check=True).stdout)
        else:
            shutil.copy(path, target)
        names.append(name)
    (root / "modules.order").write_text("\n".join(names))
    archive = folder / "initramfs.cpio"
    with open(archive, "wb") as output:
        found = subprocess.run(["find", "."], cwd=root, stdout=subprocess.PIPE, check=True).stdout
        subprocess.run(["cpio", "--quiet", "-o", "-H", "newc"], cwd=root, input=found, stdout=output, check=True)
    return archive


def boot(version, folder, features, binaries, limit):
    """Runs the features' tests in a guest, and returns its report."""
    [modules] = (folder / "lib/modules").iterdir()
    share = WORK / f"share-{version}"
    shutil.rmtree(share, ignore_errors=True)
    share.mkdir()
    shutil.copy(HERE / "guest.sh", share)
    environment = binaries | {key: os.environ[key] for key in ["PATH", "HOME"]} | {"LIMIT": str(limit or FEATURE_LIMIT)}
    (share / "environment").write_text("".join(f"export {key}={value}\n" for key, value in environment.items()))
    (share / "features").write_text(
        "".join(f"{number} {' '.join(feature['tests'])}\n" for number, feature in enumerate(features))
    )
    kvm = has_kvm()
    command = ["qemu-system-x86_64", "-accel", "kvm" if kvm else "tcg,thread=multi", "-cpu", "host" if kvm else "max"]
    command += ["-smp", "2", "-m", "3072", "-display", "none", "-monitor", "none", "-nodefaults", "-no-reboot"]
    command += ["-serial", f"file:{share}/console.log", "-device", "virtio-rng-pci", "-nic", "none"]
    command += ["-kernel", folder / f"boot/vmlinuz-{modules.name}", "-initrd", initramfs(folder, modules.name)]
    command += ["-append", "console=ttyS0 panic=-1 rdinit=/init quiet mitigations=off"]
    for tag, path, access in [("host", "/", ",readonly=on"), ("modules", modules, ",readonly=on"), ("share", share, "")]:
        command += ["-virtfs", f"local,path={path},mount_tag={tag},security_model=none,multidevs=remap{access}"]
    print(f"kernels: Linux {modules.name}, {'with KVM' if kvm else 'emulated'}")
    started = time.monotonic()
    timed_out = False
    try:
        usual = LIMIT if kvm else LIMIT_EMULATED
        subprocess.run(command, timeout=BOOT_LIMIT + limit * len(features) if limit else usual, check=True)
    except subprocess.TimeoutExpired:
        timed_out = True
    print(f"kernels: Linux {modules.name} ran for {time.monotonic() - started:.0f} s")
    return judge(f"Linux {modules.name}", share, features, timed_out)


def has_kvm():
    """Returns whether QEMU can use KVM here: `/dev/kvm` may exist and not work."""
    command = ["qemu-system-x86_64", "-accel", "kvm", "-nodefaults", "-display", "none", "-S", "-monitor", "stdio"]
    result = subprocess.run(command, input="quit\n", capture_output=True, text=True)
    return result.returncode == 0 and "doesn't support" not in result.stderr


def run_here(features, binaries):
    """Runs the same tests on the host's kernel."""
    share = WORK / "share-host"
    shutil.rmtree(share, ignore_errors=True)
    share.mkdir()
    doctor = [binaries["PEERNAME"], "doctor"]
    with open(share / "doctor", "w") as output:
        for arguments in [["--protocol", "both"], ["--confinement"]]:
            subprocess.run([*doctor, *arguments], stdout=output, stderr=subprocess.STDOUT)
    with open(share / "results", "w") as results:
        for number, feature in enumerate(features):
            with open(share / f"{number}.log", "w") as log:
                command = [binaries["E2E"], "--exact", "--test-threads", "1", *feature["tests"]]
                code = subprocess.run(command, cwd=REPOSITORY, stdout=log, stderr=subprocess.STDOUT).returncode
            results.write(f"{number} {code}\n")
    return judge(f"the host, Linux {platform.release().split('-')[0]}", share, features, False)


def judge(name, share, features, timed_out):
    """Reads the files of a run. Returns the cell of each feature for the table, and the problems, which are defects."""
    results = dict(line.split() for line in text(share / "results").splitlines())
    doctor = [re.sub(r"^\w+ +", "", line) for line in text(share / "doctor").splitlines()]
    problems = [f"{name}: {line.strip()}" for line in text(share / "dmesg").splitlines() if BROKEN.search(line)]
    if timed_out:
        problems.append(f"{name}: not finished in time: see {share}/console.log")
    cells = []
    for number, feature in enumerate(features):
        code = results.get(str(number))
        ran = re.search(r"running (\d+) tests?", text(share / f"{number}.log"))
        if ran and int(ran[1]) != len(feature["tests"]):
            problems.append(f"{name}: {feature['name']}: a test of features.toml does not exist")
        prefix = feature.get("doctor", "") + ": "
        said = next((line.removeprefix(prefix) for line in doctor if line.startswith(prefix)), "")
        if said.startswith("not available: "):
            cells.append("no: " + said.removeprefix("not available: ").split(";")[0])
        elif code == "0":
            cells.append(f"works ({said})" if "since Linux" in said else "works")
        else:
            cells.append("not run" if code is None else "FAILS")
            problems.append(f"{name}: {feature['name']}: see {share}/{number}.log")
    return {"name": name, "cells": cells, "problems": problems}


def text(path):
    return path.read_text(errors="replace") if path.exists() else ""


def write_page(features, reports):
    """Replaces the table in docs/kernels.md."""
    page = REPOSITORY / "docs/kernels.md"
    names = [re.sub(r"^the host, ", "", report["name"]) for report in reports]
    rows = ["| feature | " + " | ".join(names) + " |", "|---" * (len(reports) + 1) + "|"]
    for number, feature in enumerate(features):
        rows.append(f"| {feature['name']} | " + " | ".join(report["cells"][number] for report in reports) + " |")
    begin, end = "<!-- written by make test-kernels -->\n", "<!-- end -->"
    before, rest = page.read_text().split(begin)
    page.write_text(before + begin + "\n".join(rows) + "\n" + end + rest.split(end, 1)[1])


if __name__ == "__main__":
    main()
