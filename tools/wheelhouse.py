"""Fills `wheelhouse/`, the git-ignored folder that holds every file the lock installs here.

pip downloads, because it works with whatever index the machine is set up for. It is asked only for
what is missing: for a full wheelhouse it would take longer than installing.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from pathlib import Path

from tools.console import capture, run, say
from tools.uv import BUILD_REQUIREMENTS, Toolbox, offline_environment

_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")

# A requirement with its hashes, and the names of the files that satisfied it here. There is none
# where the requirement's marker does not hold for this interpreter.
Downloaded = dict[str, list[str]]


def fill_wheelhouse(box: Toolbox) -> None:
    """Download, checked against its hash, every file the toolbox's interpreter installs.

    Raises:
        ToolError: a file cannot be had or does not match its hash.
    """
    export = ["export", "--quiet", "--frozen", "--all-packages", "--all-groups", "--all-extras"]
    exported = capture(
        [box.uv, *export, "--no-emit-workspace", "--no-header", "--python", box.interpreter],
        cwd=box.root,
        env=offline_environment(),
    )
    built_with = (box.root / BUILD_REQUIREMENTS).read_text(encoding="utf-8")
    wanted = [*split_requirements(exported), *split_requirements(built_with)]
    box.wheelhouse.mkdir(exist_ok=True)
    record = box.uv.parent.parent / "downloaded.json"
    missing = missing_requirements(wanted, _read(record), box.wheelhouse)
    if not missing:
        return
    say(f"downloading {len(missing)} packages into {box.wheelhouse.name}")
    _download(box, missing)
    done = {requirement: _read(record).get(requirement, []) for requirement in wanted}
    done.update(match_files(missing, box.wheelhouse))
    record.write_text(json.dumps(done, indent=1), encoding="utf-8")


def split_requirements(text: str) -> list[str]:
    """Return each requirement of a requirements file as one line, without comments."""
    joined = re.sub(r"\\\n\s*", "", text)
    lines = (line.strip() for line in joined.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def missing_requirements(wanted: list[str], done: Downloaded, wheelhouse: Path) -> list[str]:
    """Return what was never downloaded, or whose file is no longer in the wheelhouse."""
    return [
        requirement
        for requirement in wanted
        if requirement not in done
        or not all((wheelhouse / name).exists() for name in done[requirement])
    ]


def match_files(requirements: list[str], wheelhouse: Path) -> Downloaded:
    """Find, by hash, the files in the wheelhouse that satisfy each requirement."""
    files = {
        hashlib.sha256(path.read_bytes()).hexdigest(): path.name
        for path in wheelhouse.iterdir()
        if path.is_file()
    }
    return {
        requirement: sorted(files[h] for h in _HASH.findall(requirement) if h in files)
        for requirement in requirements
    }


def _read(record: Path) -> Downloaded:
    return json.loads(record.read_text(encoding="utf-8")) if record.exists() else {}


def _download(box: Toolbox, requirements: list[str]) -> None:
    options = ["--no-deps", "--require-hashes", "--only-binary=:all:", "-qq"]
    places = ["--find-links", box.wheelhouse, "--dest", box.wheelhouse]
    with tempfile.TemporaryDirectory() as folder:
        listed = Path(folder) / "requirements.txt"
        listed.write_text("\n".join(requirements) + "\n", encoding="utf-8")
        run(
            [box.python, "-m", "pip", "download", *options, *places, "-r", listed],
            cwd=box.root,
            env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
            hint="pip could not download locked files; check pip's index settings and the network.",
        )
