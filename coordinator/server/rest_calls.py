"""Parts of REST calls."""

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from barrier_runtime.coordinator.client.rest_types import LONGEST_WAIT_S
from barrier_runtime.coordinator.server.guard import HEADERS, MAX_BODY_BYTES
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.ids import check_job_id

_DIGITS = 18


def job_and_run(request: Request) -> tuple[str, str | None]:
    """Without a run, a person means the last run."""
    run = request.query_params.get("run")
    return check_job_id(request.path_params["job"]), None if run is None else check_job_id(run)


def wait_s_of(request: Request) -> float:
    given = request.query_params.get("wait", "0")
    try:
        wait_s = float(given)
    except ValueError:
        wait_s = -1.0
    if not 0 <= wait_s <= LONGEST_WAIT_S:
        raise InvalidJob(f"wait={given!r} is not understood: give seconds, at most {LONGEST_WAIT_S:g}")
    return wait_s


def number_in(request: Request, name: str) -> int | None:
    text = request.query_params.get(name)
    if text is not None and not (text.isdecimal() and text.isascii() and len(text) <= _DIGITS):
        raise InvalidJob(f"{name}={text!r} is not a number: give one, such as {name}=42")
    return None if text is None else int(text)


async def body_of(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise HTTPException(413, f"the body may have at most {MAX_BODY_BYTES} bytes")
    return bytes(body)


def json_answer(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, headers=dict(HEADERS), media_type="application/json")
