"""Errors as OpenAI has them: {"error": {"message", "type", "param", "code"}} with a fitting status."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, get_args

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from draftwood.errors import (
    ConfigurationError,
    DraftwoodError,
    ModelError,
    OutOfMemory,
    Overloaded,
    RequestError,
    did_you_mean,
)
from draftwood.util import config

RETRY_AFTER = {"retry-after": "1"}
ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
    504: "timeout_error",
}


class ClientGone(Exception):
    """The client went away; nobody will read an answer."""


class ServerEnded(DraftwoodError):
    """The server ends, and with it what it works on."""

    def __init__(self) -> None:
        super().__init__("the server ended before this was finished; ask again")


class ApiError(Exception):
    """An error that a client is sent instead of an answer: status, message and OpenAI's fields."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code, self.headers = status, param, code, dict(headers or {})

    @property
    def document(self) -> dict[str, Any]:
        """The body that is sent."""
        texts = {
            "message": str(self),
            "type": ERROR_TYPES.get(self.status, "invalid_request_error"),
            "param": self.param,
        }
        readable = {key: value and value.encode("utf-8", "replace").decode() for key, value in texts.items()}
        return {"error": {**readable, "code": self.code}}


def error_response(error: ApiError) -> Response:
    """The HTTP response that carries an error."""
    return JSONResponse(error.document, error.status, error.headers)


def api_error(error: BaseException) -> ApiError:
    """Any error as a client is sent it; of faults of the server it learns only that the log describes them."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, HTTPException):
        return ApiError(error.status_code, str(error.detail).lower(), headers=error.headers)
    if isinstance(error, Overloaded):
        return ApiError(429, str(error), code="queue_full", headers=RETRY_AFTER)
    if isinstance(error, RequestError | ConfigurationError):
        return ApiError(400, str(error))
    if isinstance(error, ModelError):
        return ApiError(422, str(error))
    if isinstance(error, OutOfMemory):
        return ApiError(503, str(error), headers=RETRY_AFTER)
    if isinstance(error, ServerEnded):
        return ApiError(503, str(error), code="server_ended", headers=RETRY_AFTER)
    if isinstance(error, TimeoutError):
        return ApiError(504, "the request took longer than the server allows; ask for less", code="timeout")
    if isinstance(error, DraftwoodError):
        return ApiError(500, str(error))
    return ApiError(500, "the request failed inside the server, whose log says why")


def fields_of(kind: Any, path: list[str]) -> Iterator[str]:
    """Names of the fields that type `kind` has at a path of fields; unions and lists are looked into."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        fields = {field.alias or name: field.annotation for name, field in kind.model_fields.items()}
        if path:
            yield from fields_of(fields.get(path[0]), path[1:])
        else:
            yield from fields
    for part in get_args(kind):  # of a union or a list
        yield from fields_of(part, path)


def validation_error(error: RequestValidationError, kind: Any) -> ApiError:
    """The first thing that is wrong with a body, as a sentence; `kind` is the type that the body should have."""
    first = error.errors()[0]
    where = [str(part) for part in first["loc"]]
    if (first["type"] in ("json_invalid", "model_attributes_type", "missing") and len(where) < 2) or where[0] != "body":
        return ApiError(400, "the body must be a JSON object, sent as application/json")
    if first["type"] == "json_invalid":
        return ApiError(400, f"the body is not JSON: {first.get('ctx', {}).get('error', 'it cannot be read')}")
    if len(where) < 2:  # a name of a field
        return ApiError(400, "the name of a field is not valid Unicode: it has half of a surrogate pair")
    param = where[1]
    if first["type"] == "extra_forbidden":
        path = [part for part in where[1:-1] if part.isidentifier()]  # not the places in lists
        hint = did_you_mean(where[-1], set(fields_of(kind, path)))
        return ApiError(
            400, f"there is no field {'.'.join(where[1:])!r}{hint if 'mean' in hint else ''}", param, "unknown_field"
        )
    if first["type"] == "missing":
        return ApiError(400, f"the field {'.'.join(where[1:])!r} is missing", param, "missing_field")
    wrong = [one for one in error.errors() if one["loc"][:2] == first["loc"][:2]]
    inner = max(wrong, key=lambda one: len(one["loc"]))  # of what may be one of several types
    ways = dict.fromkeys(config.plain(one["msg"]) for one in wrong if one["input"] is inner["input"])
    return ApiError(400, f"{param}: {', or '.join(ways)}", param, "invalid_value")
