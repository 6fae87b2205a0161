"""The kernels on ARM, under emulation: products of every type, and the bits of whole forward passes.

A Python for ARM (of Debian or Ubuntu) and its libraries are fetched once into build/arm; nothing of the system changes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ARM = ROOT / "build/arm"
PROGRAMS = ("apt-get", "dpkg-deb", "cmake", "aarch64-linux-gnu-g++", "qemu-aarch64")
TORCH = "torch==2.9.1"  # PyPI's wheel for ARM has no CUDA
LIBRARIES = """
filelock fsspec hypothesis jinja2 networkx numpy pydantic pytest pyyaml rich safetensors sympy tokenizers transformers
typer typing-extensions
"""
APT = """
APT::Architecture "arm64"; APT::Architectures {{ "arm64"; }};
Dir::State "{0}/state"; Dir::State::status "{0}/state/status"; Dir::Cache "{0}/cache";
"""
TESTS = {  # those that start no program of their own, which would not be emulated
    "products": ("--noconftest", "tests/native/test_products.py", "-k", "not other_sets"),
    "forwards": ("tests/models/test_native_bits.py", "-k", "nodes_of_trees or one_by_one"),
}
USED = "import ctypes, draftwood_native as d; n = ctypes.CDLL(str(d.library())).dw_kernels; n.restype = ctypes.c_char_p"


def run(*command: str | Path, **variables: str) -> str:
    """The output of a command; its failure is the test's."""
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, **variables})
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def _fetch() -> None:
    """A Python for ARM into build/arm/root, its libraries into build/arm/libraries."""
    for folder in ("state/lists/partial", "cache/archives/partial"):
        (ARM / folder).mkdir(parents=True, exist_ok=True)
    (ARM / "state/status").touch()
    (ARM / "apt.conf").write_text(APT.format(ARM))
    own = {"APT_CONFIG": str(ARM / "apt.conf")}
    run("apt-get", "update", **own)
    run("apt-get", "install", "--yes", "--download-only", "--no-install-recommends", "python3", "libstdc++6", **own)
    for package in (ARM / "cache/archives").glob("*.deb"):
        run("dpkg-deb", "--extract", package, ARM / "root")
    minor = max(int(file.name[8:]) for file in (ARM / "root/usr/bin").glob("python3.[0-9]*"))
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(ARM / "libraries"), "--upgrade"]
    pip += ["--only-binary=:all:", "--implementation", "cp", "--python-version", f"3.{minor}"]
    for release in ("_2_28", "_2_17", "2014"):
        pip += ["--platform", f"manylinux{release}_aarch64"]
    run(*pip, "--no-deps", TORCH)  # of what it needs, pip would take this processor's
    run(*pip, *LIBRARIES.split())
    (ARM / "fetched").touch()


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with draftwood_native, compiled for ARM."""
    if missing := [program for program in PROGRAMS if not shutil.which(program)]:
        pytest.skip(f"needs {', '.join(missing)}")
    if not (ARM / "fetched").exists():
        _fetch()
    place = tmp_path_factory.mktemp("arm")
    made = place / "package/draftwood_native"
    made.mkdir(parents=True)
    shutil.copy(ROOT / "native/draftwood_native/__init__.py", made)
    options = f"-DCMAKE_LIBRARY_OUTPUT_DIRECTORY={made} -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64"
    compiler = "-DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++"
    run("cmake", "-S", ROOT / "native", "-B", place / "build", compiler, *options.split())
    run("cmake", "--build", place / "build")
    return made.parent


@pytest.mark.slow
@pytest.mark.parametrize("kernels", ["neonbf16", "neondot", "neon"])
@pytest.mark.parametrize("tests", TESTS)
def test_on_arm(package: Path, kernels: str, tests: str) -> None:
    """Each set of kernels passes all of them, in minutes each."""
    variables = {
        "DRAFTWOOD_KERNELS": kernels,
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": os.pathsep.join(map(str, (package, ARM / "libraries", ROOT))),
    }
    python = next((ARM / "root/usr/bin").glob("python3.*[0-9]"))
    emulated = ("qemu-aarch64", "-cpu", "max", "-L", ARM / "root", python)
    assert run(*emulated, "-c", f"{USED}; print(n().decode())", **variables) == f"{kernels}\n"
    options = ("-q", "-p", "no:cacheprovider", "-W", "ignore")
    printed = run(*emulated, "-m", "pytest", *options, *TESTS[tests], **variables)
    assert " passed" in printed and " skipped" not in printed, printed[-2000:]
