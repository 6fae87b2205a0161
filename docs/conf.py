"""Builds the documentation: `scripts/docs`."""

import sys
from pathlib import Path

from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parent))

from generated import fill

from draftwood import __version__

project = "draftwood"
version = release = __version__
copyright = "the draftwood authors"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
html_theme = "furo"
html_title = f"draftwood {version}"
html_copy_source = False

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3

default_role = "code"  # `name` in a docstring
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
maximum_signature_line_length = 88
autodoc_default_options = {
    "members": True,
    "exclude-members": "model_config, name, summary, draft_models",
}


def setup(app: Sphinx) -> None:
    def generated(app: Sphinx, page: str, source: list[str]) -> None:
        source[0] = fill(source[0])

    app.connect("source-read", generated)
