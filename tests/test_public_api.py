"""The public API is what __all__ says."""

import draftwood


def test_exported_members_exist_and_are_sorted() -> None:
    names = draftwood.__all__
    assert sorted(names, key=lambda name: (not name.isupper(), name)) == names
    assert all(getattr(draftwood, name) is not None for name in names)
