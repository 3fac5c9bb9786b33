"""s3fs (fsspec): each case of `programs/s3fs_cases.py` on a bucket of its own.

s3fs needs a botocore of its own, so it is not installed where the suite's boto3 is.
"""

import sys

import pytest

import commands

PACKAGES = commands.CACHE / "s3fs"


@pytest.mark.parametrize("case", commands.cases_of("s3fs_cases.py"))
def test_s3fs(fresh_bucket, case):
    if not (PACKAGES / "s3fs").is_dir():
        pytest.skip("the Python package s3fs is not installed")
    commands.run_case(sys.executable, "s3fs_cases.py", case, fresh_bucket, PYTHONPATH=str(PACKAGES))
