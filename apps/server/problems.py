"""What is wrong with a request, in OpenAI's shape."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from edgespec.config import STANDING, GenerationOptions
from edgespec.errors import (
    BudgetError,
    Cancelled,
    ClosedError,
    ContextError,
    EdgeSpecError,
    ModelError,
    OptionError,
    OverloadError,
)
from edgespec.values import in_words, options_of

log = logging.getLogger("edgespec.server")

# What messages of the library name: of a request its fields, of the server its flags.
_WORDS = {name: field.flag for kind in STANDING for name, field in options_of(kind).items()}
_WORDS |= {name: name for name in (*options_of(GenerationOptions), "memory")}


class Problem(Exception):
    """A request is refused. param: the field that is wrong, if one is."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": error}

    def response(self) -> JSONResponse:
        return JSONResponse(self.body, self.status, self.headers)


def problem_of(error: BaseException) -> Problem:
    """What the client is told of an error. What nobody expects is logged, and not told."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, HTTPException):  # starlette's: no such path, or not with this method
        return Problem(error.status_code, error.detail, headers=error.headers)
    message = str(error)
    if isinstance(error, EdgeSpecError):
        message = in_words(message, _WORDS)
    if isinstance(error, OptionError):
        return Problem(400, message, error.option, code="memory" if error.option == "memory" else None)
    if isinstance(error, ContextError):
        return Problem(400, message, code="context_length_exceeded")
    if isinstance(error, OverloadError):
        return Problem(503, message, code="overloaded", headers=again(error.patience))
    if isinstance(error, ClosedError | Cancelled):
        return Problem(503, message, code="stopping", headers=again(1))
    if isinstance(error, BudgetError):
        return Problem(400, message, "memory", code="memory")
    if isinstance(error, ModelError):  # of this request: its template or tokenizer refused it, or NaN
        return Problem(400, message)
    if isinstance(error, EdgeSpecError):  # a disk's, a device's
        return Problem(500, message)
    log.error("a request failed in a way that nobody foresaw", exc_info=error)
    return Problem(500, "the server failed in a way that nobody foresaw; its log has the details")


def again(seconds: float) -> dict[str, str]:
    """When to come back."""
    return {"retry-after": str(math.ceil(seconds))}


async def answer(request: Request, error: Exception) -> JSONResponse:
    return problem_of(error).response()
