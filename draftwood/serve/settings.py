"""Options of the server: address, access, limits. Imports neither torch nor FastAPI."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from draftwood.errors import ConfigurationError
from draftwood.util.safe_parsing import read_text

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


def _option(default: Any, description: str, **limits: Any) -> Any:
    return Field(default, description=description, **limits)


def _seconds(default: float, description: str) -> Any:
    return Field(default, description=f"Most seconds for {description}.", gt=0, le=1e6)


class ServeSettings(BaseModel):
    """Settings of the server."""

    model_config = ConfigDict(frozen=True, extra="forbid", title="Server")

    host: str = _option("127.0.0.1", "Address to listen on.")
    port: int = _option(8000, "Port to listen on; 0: any free port.", ge=0, le=65535)
    served_model_name: str | None = _option(None, "Name of the model for clients.")
    api_key: str | None = _option(None, "Key that clients must send; better in a file or in DRAFTWOOD_API_KEY.")
    api_key_file: Path | None = _option(None, "File of keys, one per line.")
    allowed_host: list[str] = _option([], "Accepted Host header. Repeatable. Default on loopback: localhost.")
    allowed_origin: list[str] = _option([], "Web origin, such as https://a.org, that may send requests. Repeatable.")
    generation_config: Literal["auto", "none"] = _option(
        "none", "Sampling of requests that do not say it: auto: as the checkpoint's makers recommend; none: OpenAI's."
    )
    max_body: int = _option(4 << 20, "Most bytes of a request's body.", ge=1024)
    max_prompt_tokens: int | None = _option(None, "Most tokens of a prompt.", ge=1)
    max_tokens: int | None = _option(None, "Most tokens that a request may generate.", ge=1)
    max_sequences: int = _option(16, "Most texts (n, best_of) or beams (width) of a prompt in a request.", ge=1)
    max_connections: int = _option(1024, "Most connections at once.", ge=1)
    request_seconds: float = _seconds(600.0, "a request")
    client_seconds: float = _seconds(30.0, "a client to send a request's head or body, or to read on")
    drain_seconds: float = _seconds(30.0, "running requests at shutdown")
    log_json: bool = _option(False, "Log every request as a line of JSON.")
    log_prompts: bool = _option(False, "Log prompts too.")

    @property
    def loopback(self) -> bool:
        """True where only this machine can reach the server."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def hosts(self) -> tuple[str, ...]:
        """Host names that requests may be for; none: all."""
        if self.allowed_host:
            return tuple(map(str.lower, self.allowed_host))
        return (*LOOPBACK, self.host.lower()) if self.loopback else ()

    def keys(self) -> list[str]:
        """The keys that clients may send; none: everybody may ask."""
        keys = [] if self.api_key is None else [self.api_key]
        if self.api_key_file is not None:
            try:
                keys += [line.strip() for line in read_text(self.api_key_file, 1 << 20).splitlines() if line.strip()]
            except (OSError, ValueError) as error:
                raise ConfigurationError(f"the key file {self.api_key_file} cannot be read: {error}") from None
            if not keys:
                raise ConfigurationError(f"the key file {self.api_key_file} holds no key; write one a line")
        if any(not key or not key.isascii() or not key.isprintable() for key in keys):
            raise ConfigurationError("an API key is empty or has characters that a header cannot carry; use ASCII")
        return keys
