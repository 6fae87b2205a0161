"""Options of the server: address, access, limits. Imports neither torch nor FastAPI."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from draftwood.errors import ConfigurationError
from draftwood.util.safe_parsing import read_text

Seconds = Annotated[float, Field(gt=0, le=1e6)]
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


class ServeSettings(BaseModel):
    """Settings of the server."""

    model_config = ConfigDict(frozen=True, extra="forbid", title="Server")

    host: Annotated[str, Field(description="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535, description="Port to listen on; 0: any free port.")] = 8000
    served_model_name: Annotated[str | None, Field(description="Name of the model for clients.")] = None
    api_key: Annotated[
        str | None, Field(description="Key that clients must send; better in a file or in DRAFTWOOD_API_KEY.")
    ] = None
    api_key_file: Annotated[Path | None, Field(description="File of keys, one per line.")] = None
    allowed_host: Annotated[
        list[str], Field(description="Accepted Host header. Repeatable. Default on loopback: localhost.")
    ] = Field(default_factory=list)
    allowed_origin: Annotated[
        list[str],
        Field(description="Web origin whose pages may send requests (CORS), such as https://a.org. Repeatable."),
    ] = Field(default_factory=list)
    max_body: Annotated[int, Field(ge=1024, description="Most bytes of a request's body.")] = 4 << 20
    max_prompt_tokens: Annotated[int | None, Field(ge=1, description="Most tokens of a prompt.")] = None
    max_tokens: Annotated[int | None, Field(ge=1, description="Most tokens that a request may generate.")] = None
    max_sequences: Annotated[
        int, Field(ge=1, description="Most texts (n, best_of) or beams (width) of a prompt in a request.")
    ] = 16
    max_connections: Annotated[int, Field(ge=1, description="Most connections at once.")] = 1024
    request_seconds: Annotated[Seconds, Field(description="Most seconds for a request.")] = 600.0
    client_seconds: Annotated[
        Seconds, Field(description="Most seconds for a client to send a request's head or body, or to read on.")
    ] = 30.0
    drain_seconds: Annotated[Seconds, Field(description="Most seconds for running requests at shutdown.")] = 30.0
    log_json: Annotated[bool, Field(description="Log every request as a line of JSON.")] = False
    log_prompts: Annotated[bool, Field(description="Log prompts too.")] = False

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
