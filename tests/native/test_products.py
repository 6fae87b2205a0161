"""Products of the native kernels: every type against float64, rows on their own, every kernel set of this machine."""

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

F32, BF16, INT4, INT8 = 0, 1, 3, 4
TYPES = {"float32": F32, "bfloat16": BF16, "int4": INT4, "int8": INT8}
ERROR = {F32: 1e-6, BF16: 4e-3, INT4: 0.12, INT8: 1.5e-2}  # of the norm of what is right
SOURCE = Path(__file__).parents[2] / "native"
Floats = NDArray[np.float32]


def _library() -> ctypes.CDLL:
    where = pytest.importorskip("draftwood_native", reason="draftwood-native is not installed")
    try:
        lib = ctypes.CDLL(str(where.library()))
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    pointer, number, whole = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
    lib.dw_matrix.restype = lib.dw_matrix_grouped.restype = pointer
    lib.dw_matrix.argtypes = [whole, number, number, pointer, whole, pointer, whole]
    lib.dw_matrix_grouped.argtypes = [whole, number, number, *[pointer] * 5, whole]
    lib.dw_matrix_apply.argtypes = [pointer, number, pointer, pointer, whole]
    lib.dw_matrix_free.argtypes = [pointer]
    lib.dw_kernels.restype = lib.dw_runnable.restype = lib.dw_error.restype = ctypes.c_char_p
    return lib


class Matrix:
    """A packed weight [n, k]; called with rows [m, k] it gives rows [m, n]."""

    def __init__(self, lib: ctypes.CDLL, made: int | None, n: int) -> None:
        self.lib, self.made, self.n = lib, made, n

    def __call__(self, x: Floats, threads: int = 1) -> Floats:
        x = np.ascontiguousarray(x)
        out = np.full((len(x), self.n), 7, np.float32)
        assert self.lib.dw_matrix_apply(self.made, len(x), x.ctypes.data, out.ctypes.data, threads) == 0
        return out

    def __del__(self) -> None:
        self.lib.dw_matrix_free(self.made)


@pytest.fixture(scope="module")
def lib() -> Iterator[ctypes.CDLL]:
    yield _library()


def packed(lib: ctypes.CDLL, kind: int, weight: Floats, bias: Floats | None = None) -> Matrix:
    n, k = weight.shape
    return Matrix(
        lib, lib.dw_matrix(kind, n, k, weight.ctypes.data, 0, bias.ctypes.data if bias is not None else None, 2), n
    )


def normal(*shape: int) -> Floats:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


each_type = pytest.mark.parametrize("kind", TYPES.values(), ids=TYPES)


@each_type
@pytest.mark.parametrize("n, k", [(1, 1), (5, 7), (16, 64), (33, 100), (100, 1000), (70, 2049)])
def test_error(lib: ctypes.CDLL, kind: int, n: int, k: int) -> None:
    weight, x, bias = normal(n, k), normal(9, k), normal(n)
    right = x.astype(np.float64) @ weight.T.astype(np.float64) + bias
    for rows in (1, 4, 9):
        found = packed(lib, kind, weight, bias)(x[:rows])
        assert np.linalg.norm(found - right[:rows]) <= ERROR[kind] * np.linalg.norm(right[:rows])


@each_type
def test_rows_do_not_depend_on_others(lib: ctypes.CDLL, kind: int) -> None:
    x = normal(130, 333)
    product = packed(lib, kind, normal(150, 333), normal(150))
    together = product(x)
    for rows in range(1, 131):
        start = rows * 37 % (131 - rows)
        assert np.array_equal(product(x[start : start + rows], threads=rows % 3 + 1), together[start : start + rows])


@each_type
def test_weights_in_bfloat16(lib: ctypes.CDLL, kind: int) -> None:
    halves = (normal(40, 70).view(np.uint32) >> 16).astype(np.uint16)
    weight = (halves.astype(np.uint32) << 16).view(np.float32)
    x = normal(3, 70)
    from_halves = Matrix(lib, lib.dw_matrix(kind, 40, 70, halves.ctypes.data, 1, None, 1), 40)
    assert np.array_equal(from_halves(x), packed(lib, kind, weight)(x))


def test_int8_is_the_same_everywhere(lib: ctypes.CDLL) -> None:
    """Sums of a group are whole and exact, and groups are added up in order: a kernel set has the bits of NumPy."""
    weight, x = normal(33, 320), normal(20, 320)
    w, v = (values.reshape(len(values), -1, 32) for values in (weight, x))
    most_w, most_v = (np.abs(groups).max(2, keepdims=True) for groups in (w, v))
    w_step = (most_w / np.float32(127)).astype(np.float16).astype(np.float32)
    w_code, v_code = np.rint(w / w_step).clip(-127, 127), np.rint(v * (np.float32(127) / most_v))
    right = np.zeros((20, 33), np.float32)
    wide = np.float32 if lib.dw_kernels() == b"portable" else np.float64  # all others fuse: one rounding
    for group in range(10):
        whole = (v_code[:, group].astype(np.int64) @ w_code[:, group].T.astype(np.int64)).astype(np.float32)
        scaled = (whole * w_step[:, group].T).astype(wide)
        right = (scaled * (most_v[:, group] / np.float32(127)) + right).astype(np.float32)
    assert np.array_equal(packed(lib, INT8, weight)(x), right)


@pytest.mark.parametrize("kind", [INT4, INT8], ids=["int4", "int8"])
@pytest.mark.parametrize("k", [32, 70, 320])
def test_groups(lib: ctypes.CDLL, kind: int, k: int) -> None:
    random = np.random.default_rng(k)
    n, groups = 21, -(-k // 32)
    numbers = random.integers(0, 16, (n, k)) if kind == INT4 else random.integers(-128, 128, (n, k))
    scale = random.uniform(0.01, 1, (n, groups)).astype(np.float16)
    shift = random.uniform(-3, 3, (n, groups)).astype(np.float16) if kind == INT4 else np.zeros((n, groups), np.float16)
    x = random.integers(-127, 128, (6, k)).astype(np.float32)
    x[:, ::32] = 127  # so that each group of a row is held exactly
    codes = numbers.astype(np.uint8 if kind == INT4 else np.int8).view(np.uint8)
    made = lib.dw_matrix_grouped(
        kind, n, k, codes.ctypes.data, scale.ctypes.data, shift.ctypes.data if kind == INT4 else None, None, None, 2
    )
    weight = (
        numbers * np.repeat(scale.astype(np.float64), 32, 1)[:, :k] + np.repeat(shift.astype(np.float64), 32, 1)[:, :k]
    )
    right = x @ weight.T
    assert np.abs(Matrix(lib, made, n)(x) - right).max() <= 1e-6 * np.abs(right).max()


@each_type
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_told(lib: ctypes.CDLL, kind: int, value: float) -> None:
    weight, x = normal(40, 100), normal(7, 100)
    right = packed(lib, kind, weight)(x)
    broken = x.copy()
    broken[3, 41] = value
    found = packed(lib, kind, weight)(broken)
    assert not np.isfinite(found[3]).any() and np.array_equal(np.delete(found, 3, 0), np.delete(right, 3, 0))
    weight = weight.copy()
    weight[20, 41] = value
    found = packed(lib, kind, weight)(x)
    assert not np.isfinite(found[:, 20]).any() and np.array_equal(np.delete(found, 20, 1), np.delete(right, 20, 1))


@each_type
@pytest.mark.parametrize("size", [0, 1e-45, 1e-38, 1e30])
def test_extreme_sizes(lib: ctypes.CDLL, kind: int, size: float) -> None:
    found = packed(lib, kind, normal(20, 64))(normal(3, 64) * np.float32(size))
    assert np.isfinite(found).all() and (np.abs(found) <= 100 * np.float32(size)).all()


def test_bad_weights_are_refused(lib: ctypes.CDLL) -> None:
    weight = normal(4, 4)
    assert lib.dw_matrix(F32, 4, 0, weight.ctypes.data, 0, None, 1) is None
    assert b"inputs" in lib.dw_error()
    assert lib.dw_matrix_grouped(BF16, 4, 4, weight.ctypes.data, weight.ctypes.data, None, None, None, 1) is None


def test_other_sets(lib: ctypes.CDLL) -> None:
    """All of this with each kernel set that the processor runs."""
    if os.environ.get("DRAFTWOOD_KERNELS"):
        pytest.skip("this is the test of another set")
    able, used = lib.dw_runnable().decode().split(), lib.dw_kernels().decode()
    first, found = able[: able.index(used)], []  # better ones than the one in use: no such processor has run them yet
    for name in able:
        if name != used:
            command = [sys.executable, "-m", "pytest", "-q", "--noconftest", "-p", "no:cacheprovider", __file__]
            env = {**os.environ, "DRAFTWOOD_KERNELS": name, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # none is used
            run = subprocess.run(command, env=env, capture_output=True, text=True)
            if name in first:
                found.append(f"{name} {'failed: ' + run.stdout[-2000:] if run.returncode else 'passed'}")
            else:
                assert run.returncode == 0, run.stdout
    if found:
        pytest.skip(f"first run on such a processor, see native/src/dispatch.cpp: {'; '.join(found)}")


def _built(target: str, where: Path, *options: str) -> Path:
    for command in (
        ["cmake", "-S", str(SOURCE), "-B", str(where), "-DDRAFTWOOD_TESTS=ON", *options],
        ["cmake", "--build", str(where), "--target", target],
    ):
        run = subprocess.run(command, capture_output=True, text=True)
        assert run.returncode == 0, run.stdout + run.stderr
    return where / target


@pytest.mark.slow
def test_emulated_instructions(tmp_path: Path) -> None:
    """The code around the instructions of VNNI, AVX512-BF16 and AMX, with these computed in C++."""
    if not shutil.which("cmake"):
        pytest.skip("there is no cmake")
    run = subprocess.run([_built("emulated", tmp_path)], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout


@pytest.mark.slow
def test_arm(tmp_path: Path) -> None:
    """The NEON sets, under emulation of a whole processor."""
    if not all(map(shutil.which, ("cmake", "aarch64-linux-gnu-g++", "qemu-aarch64"))):
        pytest.skip("needs cmake, aarch64-linux-gnu-g++ and qemu-aarch64")
    options = "-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_EXE_LINKER_FLAGS=-static"
    program = _built("sets", tmp_path, *options.split(), "-DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++")
    for name in ("neonbf16", "neondot", "neon", "portable"):
        environment = {**os.environ, "DRAFTWOOD_KERNELS": name}
        command = ["qemu-aarch64", "-cpu", "max", str(program)]
        run = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert run.returncode == 0 and run.stdout.startswith(f"{name} of"), run.stdout
