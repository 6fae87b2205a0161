"""Files are replaced whole, and lines that were cut are cut off."""

import json
from pathlib import Path

import pytest

from draftwood.errors import ConfigurationError
from draftwood.util import jsonl
from draftwood.util.files import replacing, write_json


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt), replacing(path) as partial:
        partial.write_text("half of the n")
        assert path.read_text() == "old"
        raise KeyboardInterrupt
    assert path.read_text() == "old"
    with pytest.raises(ValueError):
        write_json(path, {"share": float("nan")})
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    write_json(path, {"share": 0.5})
    assert json.loads(path.read_text()) == {"share": 0.5}
    assert list(tmp_path.iterdir()) == [path]


def test_what_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be written"):
        write_json(tmp_path / "missing" / "figures.json", {})


@pytest.mark.parametrize("block", [1, 3, 1 << 16])
@pytest.mark.parametrize(
    ("content", "kept"),
    [
        (b"", b""),
        (b"a", b""),
        (b"a\n", b"a\n"),
        (b"a\nbc", b"a\n"),
        (b"a\n\nlonger than a block", b"a\n\n"),
        (b"\nabc", b"\n"),
    ],
)
def test_torn_lines_are_cut_off(
    tmp_path: Path, content: bytes, kept: bytes, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonl, "BLOCK", block)
    path = tmp_path / "lines"
    path.write_bytes(content)
    with path.open("r+b") as file:
        jsonl.cut_torn_line(file)
    assert path.read_bytes() == kept
