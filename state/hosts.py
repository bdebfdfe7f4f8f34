"""Host names and addresses as texts: which of them other hosts can connect to. Pure."""

import ipaddress


def bare(host: str) -> str:
    return host.removeprefix("[").removesuffix("]")


def is_loopback(host: str) -> bool:
    """True for addresses that only processes on the same host reach. Names other than `localhost` are not resolved."""
    try:
        address = ipaddress.ip_address(bare(host))
    except ValueError:
        return host == "localhost"
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None  # on a socket of both kinds
    return (mapped or address).is_loopback


def is_every_interface(host: str) -> bool:
    """True for `0.0.0.0` and `::`: a process can listen there, and nobody can connect there."""
    try:
        return ipaddress.ip_address(bare(host)).is_unspecified
    except ValueError:
        return False


def shown(host: str, port: int) -> str:
    return f"[{bare(host)}]:{port}" if ":" in host else f"{host}:{port}"


def split(address: str) -> tuple[str, int | None]:
    """Returns host and port of `host:port`, `[v6]:port`, `host` or `[v6]`. Raises `ValueError` for anything else."""
    host, colon, port = address.rpartition(":")
    if not colon or address.endswith("]"):
        host, port = address, ""
    elif not (port.isascii() and port.isdigit() and int(port) < 1 << 16):
        raise ValueError(f"{port!r} is no port")
    if not host:
        raise ValueError("the host is missing")
    return bare(host), int(port) if port else None
