"""Where the compiled library lies; `draftwood.models.backend.native` calls it."""

from pathlib import Path


def library() -> Path:
    """The shared library; FileNotFoundError where it was not built."""
    here = Path(__file__).parent
    for name in ("libdraftwood_native.so", "libdraftwood_native.dylib"):
        if (here / name).is_file():
            return here / name
    raise FileNotFoundError(f"{here} has no compiled library; install draftwood-native again")
