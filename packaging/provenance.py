#!/usr/bin/env python3
"""Prints how a release was built: an in-toto statement with the provenance predicate of SLSA 1.0.

Usage: provenance.py OUT, the folder of the release. Every file in it is a subject, by its SHA-256.

https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md, https://slsa.dev/spec/v1.0/provenance
"""

import hashlib
import json
import os
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path

# The variables that change the released files.
VARIABLES = ["STATIC", "SOURCE_DATE_EPOCH", "MAINTAINER", "CA_BUNDLE"]
# The statement itself, and the files that are written after it.
NOT_SUBJECTS = {"SHA256SUMS", "SHA256SUMS.minisig", "provenance.json"}


def main(release: Path) -> None:
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [
            {"name": file.name, "digest": {"sha256": hashlib.sha256(file.read_bytes()).hexdigest()}}
            for file in sorted(release.iterdir())
            if file.name not in NOT_SUBJECTS
        ],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {"buildDefinition": build_definition(), "runDetails": run_details()},
    }
    json.dump(statement, sys.stdout, indent=2)
    print()


def build_definition() -> dict:
    commit = output("git", "rev-parse", "HEAD")
    return {
        # docs/install.md, "Make a release", describes it.
        "buildType": "urn:peername:make-dist:1",
        "externalParameters": {
            "target": "dist",
            "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        },
        "internalParameters": {"rustc": output("rustc", "--version")},
        "resolvedDependencies": [
            {"name": "source", "digest": {"gitCommit": commit}},
            locked("Cargo.lock"),
        ],
    }


def run_details() -> dict:
    return {
        "builder": {"id": os.environ.get("BUILDER_ID", "urn:peername:local-build")},
        "metadata": {"finishedOn": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")},
    }


def locked(name: str) -> dict:
    """The list of the crates: it has a checksum of each."""
    return {"name": name, "digest": {"sha256": hashlib.sha256(Path(name).read_bytes()).hexdigest()}}


def output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
