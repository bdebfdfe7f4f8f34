"""Host names and addresses as texts. Pure."""

import ipaddress


def bare(host: str) -> str:
    return host.removeprefix("[").removesuffix("]")


def is_loopback(host: str) -> bool:
    """True for addresses that only this host reaches. Resolves no names."""
    try:
        address = ipaddress.ip_address(bare(host))
    except ValueError:
        return host == "localhost"
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None  # on a socket of both kinds
    return (mapped or address).is_loopback


def is_every_interface(host: str) -> bool:
    """True for `0.0.0.0` and `::`, where nobody can connect."""
    try:
        return ipaddress.ip_address(bare(host)).is_unspecified
    except ValueError:
        return False


def network_of(host: str) -> str:
    """Returns the /64 network of an IPv6 address: a client may use each address."""
    try:
        address = ipaddress.ip_address(bare(host).partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    return str(address.ipv4_mapped or ipaddress.ip_network((address, 64), strict=False))


def shown(host: str, port: int | str) -> str:
    return f"[{bare(host)}]:{port}" if ":" in host else f"{host}:{port}"


def split(address: str) -> tuple[str, int | None]:
    """Splits `host:port`, `[v6]:port`, `host` or `[v6]`. Raises `ValueError` for anything else."""
    host, colon, port = address.rpartition(":")
    if not colon or address.endswith("]"):
        host, port = address, ""
    elif not (port.isascii() and port.isdigit() and int(port) < 1 << 16):
        raise ValueError(f"{port!r} is no port")
    if not host:
        raise ValueError("the host is missing")
    return bare(host), int(port) if port else None
