"""minio-js and the AWS SDK for JavaScript: each case of `programs/*.cjs` on a bucket of its own."""

import functools
import re
import subprocess

import pytest

import commands

MODULES = commands.CACHE / "node" / "node_modules"
# The AWS SDK does not run on earlier releases.
MIN_NODE_MAJOR = 20


@functools.cache
def missing(module):
    """The reason why no program can use the module; None if it can."""
    node = commands.shutil.which("node")
    if not node:
        return "node is not installed"
    version = subprocess.run([node, "--version"], capture_output=True, text=True).stdout
    if int(re.match(r"v(\d+)", version).group(1)) < MIN_NODE_MAJOR:
        return f"node {version.strip()} is older than {MIN_NODE_MAJOR}"
    if not (MODULES / module).is_dir():
        return f"the npm package {module} is not installed"
    return None


def run_case(module, program, case, bucket):
    if reason := missing(module):
        pytest.skip(reason)
    commands.run_case("node", program, case, bucket, NODE_PATH=str(MODULES), NODE_NO_WARNINGS="1")


@pytest.mark.parametrize("case", commands.cases_of("minio_js.cjs"))
def test_minio_js(fresh_bucket, case):
    run_case("minio", "minio_js.cjs", case, fresh_bucket)


@pytest.mark.parametrize("case", commands.cases_of("aws_sdk_js.cjs"))
def test_aws_sdk_js(fresh_bucket, case):
    run_case("@aws-sdk/client-s3", "aws_sdk_js.cjs", case, fresh_bucket)
