"""How the server behaves: where it listens, who may ask, and how much. Imports neither torch nor FastAPI."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from draftwood.errors import ConfigurationError
from draftwood.reading import read_text

Seconds = Annotated[float, Field(gt=0, le=1e6)]
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


class ServeSettings(BaseModel):
    """How the server behaves."""

    model_config = ConfigDict(frozen=True, extra="forbid", title="Server")

    host: Annotated[str, Field(description="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535, description="Port to listen on; 0: any that is free.")] = 8000
    served_model_name: Annotated[str | None, Field(description="What clients call the model.")] = None
    api_key: Annotated[str | None, Field(description="Key that clients must send; better in a file or variable.")] = (
        None
    )
    api_key_file: Annotated[Path | None, Field(description="File of such keys, one a line.")] = None
    allowed_host: Annotated[
        list[str], Field(description="Host name that requests may be for. Repeatable. On loopback: localhost.")
    ] = Field(default_factory=list)
    allowed_origin: Annotated[
        list[str], Field(description="Web origin whose pages may ask (CORS), such as https://a.org. Repeatable.")
    ] = Field(default_factory=list)
    max_body: Annotated[int, Field(ge=1024, description="Bytes of a request's body at most.")] = 4 << 20
    max_prompt_tokens: Annotated[int | None, Field(ge=1, description="Tokens of a prompt at most.")] = None
    max_tokens: Annotated[int | None, Field(ge=1, description="Tokens that a request may ask for at most.")] = None
    max_connections: Annotated[int, Field(ge=1, description="Connections at once at most.")] = 1024
    request_seconds: Annotated[Seconds, Field(description="How long a request may take.")] = 600.0
    client_seconds: Annotated[
        Seconds, Field(description="How long a client may take to send a request's head, its body, or to read on.")
    ] = 30.0
    drain_seconds: Annotated[Seconds, Field(description="How long running requests may go on at the end.")] = 30.0
    log_json: Annotated[bool, Field(description="Log every request as a line of JSON.")] = False
    log_prompts: Annotated[bool, Field(description="Prompts in the log, too.")] = False

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the server."""
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
        found = [] if self.api_key is None else [self.api_key]
        if self.api_key_file is not None:
            try:
                found += [line.strip() for line in read_text(self.api_key_file, 1 << 20).splitlines() if line.strip()]
            except (OSError, ValueError) as error:
                raise ConfigurationError(f"the key file {self.api_key_file} cannot be read: {error}") from None
            if not found:
                raise ConfigurationError(f"the key file {self.api_key_file} holds no key; write one a line")
        if any(not key or not key.isascii() or not key.isprintable() for key in found):
            raise ConfigurationError("an API key is empty or has characters that a header cannot carry; use ASCII")
        return found
