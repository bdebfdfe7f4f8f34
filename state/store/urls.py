"""Credentials never travel in URLs (behaviour J6): URLs end up in logs, error texts, process lists and `explain`.

So a URL that carries some is refused where it is given, by a message that does not repeat it, and no message shows more
of a URL than `shown` leaves of it.
"""

import re
from urllib.parse import parse_qs, unquote, urlsplit

from barrier_runtime.state.errors import InvalidJob

_SETTINGS = re.compile(r"(?<!\[)\?[A-Za-z][A-Za-z0-9_.-]*=")  # [?] of a pattern is a question mark
_REMEDY = "remove them and give them to the cloud's default chain (environment, files of its tools, or a role)"


def without_credentials(url: str, what: str) -> str:
    """`url` itself, if it has neither user nor password, nor has its `endpoint=`. `what` names it in the message."""
    if _carries_credentials(url):
        raise InvalidJob(f"{what} must not carry credentials in its URL: {_REMEDY}")
    return url


def shown(url: str) -> str:
    """What of a URL may be printed: no user, no password, no query."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    place = rest.partition("?")[0].partition("#")[0]
    if scheme == "abfss" and place.count("@") == 1 and ":" not in place.partition("@")[0]:
        return f"{scheme}://{place}"
    return f"{scheme}://{place.rpartition('@')[2] if '@' in place else place}"


def split_settings(url: str) -> tuple[str, str]:
    """`url` without its settings, and those, such as `endpoint=http://host`. What stands before them is a name, which
    may have a question mark, a hash or a percent sign."""
    found = _SETTINGS.search(url)
    return (url, "") if found is None else (url[: found.start()], url[found.start() + 1 :])


def local_path(path: str) -> str:
    """A path of this machine, given as one or as a `file://` URL, whose percent signs are decoded."""
    if not path.startswith("file://"):
        return path
    return unquote("/" + path.removeprefix("file://").partition("/")[2])


def _carries_credentials(url: str) -> bool:
    if "://" not in url:
        return False
    try:
        parts = urlsplit(url)
        endpoints = parse_qs(split_settings(url)[1]).get("endpoint", [])
    except ValueError:  # no URL at all; who opens it says so
        return "@" in url
    if parts.scheme == "abfss":  # container@account
        return parts.netloc.count("@") > 1 or ":" in parts.netloc or any(map(_carries_credentials, endpoints))
    if "@" in parts.netloc or any(_carries_credentials(endpoint) for endpoint in endpoints):
        return True
    # A secret key may hold a slash, and the rest of it is in the path then; no bucket has a colon in its name.
    return parts.scheme in ("s3", "s3a") and ":" in parts.netloc


def last_part(url: str) -> str:
    """The name of the folder that `url` or a path names, without the place where it lies, so that it may move."""
    return str(url).partition("?")[0].rstrip("/").rpartition("/")[2]
