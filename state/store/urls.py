"""Keeps credentials out of URLs, which appear in logs, error texts, process lists and `explain`.

Messages print URLs only by `shown`.
"""

import re
from urllib.parse import parse_qs, unquote, urlsplit

from barrier_runtime.state.errors import InvalidJob

_SETTINGS = re.compile(r"(?<!\[)\?[A-Za-z][A-Za-z0-9_.-]*=")  # the pattern [?] starts no settings
_REMEDY = "remove them and give them to the cloud's default chain (environment, files of its tools, or a role)"


def without_credentials(url: str, what: str) -> str:
    """Raises `InvalidJob` if user or password are in `url` or `endpoint=`."""
    if _carries_credentials(url):
        raise InvalidJob(f"{what} must not carry credentials in its URL: {_REMEDY}")
    return url


def shown(url: str) -> str:
    """The printable part of a URL: without user, password and query."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    place = rest.partition("?")[0].partition("#")[0]
    if scheme == "abfss" and place.count("@") == 1 and ":" not in place.partition("@")[0]:
        return f"{scheme}://{place}"
    return f"{scheme}://{place.rpartition('@')[2] if '@' in place else place}"


def split_settings(url: str) -> tuple[str, str]:
    """URL, which may contain a question mark, and settings such as `endpoint=http://host`."""
    found = _SETTINGS.search(url)
    return (url, "") if found is None else (url[: found.start()], url[found.start() + 1 :])


def local_path(path: str) -> str:
    """Decodes percent signs of a `file://` URL."""
    if not path.startswith("file://"):
        return path
    return unquote("/" + path.removeprefix("file://").partition("/")[2])


def _carries_credentials(url: str) -> bool:
    if "://" not in url:
        return False
    try:
        parts = urlsplit(url)
        endpoints = parse_qs(split_settings(url)[1]).get("endpoint", [])
    except ValueError:  # opening the URL raises the error
        return "@" in url
    if parts.scheme == "abfss":  # container@account
        return parts.netloc.count("@") > 1 or ":" in parts.netloc or any(map(_carries_credentials, endpoints))
    if "@" in parts.netloc or any(_carries_credentials(endpoint) for endpoint in endpoints):
        return True
    # A secret key may contain a slash, so that the end is in the path; no bucket's name has a colon.
    return parts.scheme in ("s3", "s3a") and ":" in parts.netloc


def last_part(url: str) -> str:
    return str(url).partition("?")[0].rstrip("/").rpartition("/")[2]
