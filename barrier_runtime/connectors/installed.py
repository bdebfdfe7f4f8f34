"""Connectors of other packages, found by entry points and listed as in the registry.

A package names a `Connector` in the group `barrier_runtime.connectors`; docs/connector-packages.md shows an example.
Names in snapshots never choose a module to import: only installed packages do.
"""

from importlib.metadata import EntryPoint, entry_points

from barrier_runtime.connectors.registry import CONNECTORS, SINKS, Connector, PublicClass
from barrier_runtime.state.errors import InvalidJob

GROUP = "barrier_runtime.connectors"


def all_connectors() -> tuple[Connector, ...]:
    """Returns the connectors of this package, then the installed connectors, sorted by name.

    Raises `InvalidJob` for an entry point that cannot be loaded or is not a `Connector`.
    """
    return (*CONNECTORS, *(_loaded(each) for each in sorted(entry_points(group=GROUP), key=lambda each: each.name)))


def sinks_by_kind() -> dict[str, PublicClass]:
    """Returns the sink classes that can be built from a snapshot, by the kind that the snapshot names.

    Raises `InvalidJob` if two packages use the same kind.
    """
    found = dict(SINKS)
    for connector in all_connectors()[len(CONNECTORS) :]:
        for sink in (each for sinks in connector.sinks for each in sinks.classes if each.kind):
            if sink.kind in found:
                names = " and ".join(f"{each.module}.{each.name}" for each in (found[sink.kind], sink))
                raise InvalidJob(
                    f"the sinks {names} have the same kind {sink.kind!r}: uninstall the package of one, or give its "
                    "sink another kind"
                )
            found[sink.kind] = sink
    return found


def _loaded(entry: EntryPoint) -> Connector:
    package = entry.dist.name if entry.dist is not None else entry.value
    try:
        connector = entry.load()
    except Exception as error:
        raise InvalidJob(
            f"the connector {entry.name!r} of the package {package} cannot be loaded: {error}: update or uninstall the "
            "package"
        ) from error
    if not isinstance(connector, Connector):
        raise InvalidJob(
            f"the entry point {entry.name!r} of the package {package} is {connector!r}: it has to name a Connector of "
            "barrier_runtime.connectors.registry (docs/connector-packages.md)"
        )
    return connector
