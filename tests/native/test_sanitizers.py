"""The library, built with sanitizers, under the tests of its products, forwards and threads."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = {
    "address,undefined": ("tests/native", "tests/models/test_native.py", "tests/models/test_experts.py"),
    "thread": ("tests/native",),
}
LEFT_OUT = "not sanitizers and not memory and not can_be_had and not other_sets and not slow"  # limits; sets alone
RUNTIMES = {"address,undefined": ("libasan.so", "libubsan.so", "libstdc++.so"), "thread": ("libtsan.so",)}


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="loads the sanitizers' libraries as Linux does")
@pytest.mark.parametrize("kind", TESTS)
def test_sanitizers_find_nothing(kind: str, tmp_path: Path) -> None:
    if not all(map(shutil.which, ("cmake", "g++"))):
        pytest.skip("needs cmake and g++")
    package = tmp_path / "draftwood_native"
    shutil.copytree(ROOT / "native/draftwood_native", package, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    flags = f"-fsanitize={kind} -fno-sanitize-recover=all -fno-omit-frame-pointer -g"
    options = ["-DCMAKE_CXX_COMPILER=g++", "-DDRAFTWOOD_OPTIMISED=-O1"]
    options += [f"-DCMAKE_CXX_FLAGS={flags}", f"-DCMAKE_LIBRARY_OUTPUT_DIRECTORY={package}"]
    for command in (
        ["cmake", "-S", ROOT / "native", "-B", tmp_path / "build", *options],
        ["cmake", "--build", tmp_path / "build", "-j2"],
    ):
        run = subprocess.run(command, capture_output=True, text=True)
        assert run.returncode == 0, run.stdout + run.stderr
    runtimes = [
        subprocess.run(["g++", f"-print-file-name={name}"], capture_output=True, text=True).stdout.strip()
        for name in RUNTIMES[kind]
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "LD_PRELOAD": " ".join(runtimes),
        "ASAN_OPTIONS": "detect_leaks=0",  # Python leaves much to the end of the process
        "TSAN_OPTIONS": "ignore_noninstrumented_modules=1 exitcode=66",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-k", LEFT_OUT, *TESTS[kind]]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-4000:]
