"""The page of a server's certificate: one HTML file with everything in it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from draftwood.explain.terminal import as_json


def page(document: Mapping[str, Any]) -> str:
    """HTML of a certificate's document (`ServerCertificate.as_dict`)."""
    homes = ChoiceLoader([PackageLoader(name, ".") for name in ("draftwood.certify.server", "draftwood.eval.report")])
    template = Environment(loader=homes, autoescape=True, undefined=StrictUndefined).get_template("page.html")
    checks = [{**check, "figures": {"differences": (), **check["figures"]}} for check in document["checks"]]
    return template.render(
        {**document, "checks": checks}, document=json.dumps(json.loads(as_json(document)), indent=1, ensure_ascii=False)
    )
