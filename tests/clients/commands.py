"""Client programs: where they are, and how they are run. A test whose program is not installed is skipped with the reason.

`install` in this directory installs them below `tests/.cache` and `bench/.cache`. Programs in PATH come first.
"""

import os
import pathlib
import re
import shutil
import subprocess

import pytest

SUITE = pathlib.Path(__file__).resolve().parent
PROGRAMS = SUITE / "programs"
CACHE = SUITE.parent / ".cache"
BINARIES = SUITE.parent.parent / "bench" / ".cache" / "bin"


def run(command, environment, check=True, **options):
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, **options)
    if check:
        assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def binary(name):
    """The path of a program; skips the test if it is not installed."""
    path = shutil.which(name) or shutil.which(name, path=f"{BINARIES}{os.pathsep}{CACHE}")
    return path or pytest.skip(f"{name} is not installed")


def cases_of(program):
    """The names of a program's cases: functions that take a bucket."""
    text = (PROGRAMS / program).read_text()
    return re.findall(r"^(?:  async |def )(\w+)\((?:\w+, )?bucket\)", text, re.MULTILINE)


def run_case(interpreter, program, case, bucket, **environment):
    """Runs one case of a program on a bucket; its output is shown if it fails."""
    return run([interpreter, str(PROGRAMS / program), case, bucket], {**os.environ, **environment})
