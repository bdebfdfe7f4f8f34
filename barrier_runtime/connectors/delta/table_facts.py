"""Columns, partitions and settings of a Delta table that written rows must fit."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from barrier_runtime.connectors.delta.schema import DeltaType, check_fits
from barrier_runtime.state.errors import InvalidJob

_VECTORS = "delta.enableDeletionVectors"
_NOT_REPLACED = {
    "delta.appendOnly": "so no row may be replaced",
    _VECTORS: "which delta-rs does not keep when it replaces rows",
}


class DeltaTableFacts:
    def __init__(
        self,
        url: str,
        partition_by: tuple[str, ...],
        fields: Sequence[Mapping[str, Any]],
        settings: Mapping[str, str],
        features: Collection[str] = (),
    ) -> None:
        self.url = url
        self.partition_by = partition_by
        self.fields = fields
        self._settings = settings
        self._features = features

    def check_replacing(self, where: str) -> None:
        """Raises `InvalidJob` for a table whose rows must not, or cannot, be replaced."""
        for setting, why in _NOT_REPLACED.items():
            if self._settings.get(setting, "false").lower() == "true":
                raise InvalidJob(f"{where}: the table {self.url} has {setting}=true, {why}: unset it, or use DeltaSink")

    def check_compacted(self, where: str) -> None:
        """Raises `InvalidJob` for a table with deletion vectors, which a rewrite of files would lose."""
        if "deletionVectors" in self._features or self._settings.get(_VECTORS, "false").lower() == "true":
            raise InvalidJob(
                f"{where}: the table {self.url} has deletion vectors, which compact= does not apply: leave compact= "
                "out and have the table compacted by OPTIMIZE, or drop the feature deletionVectors"
            )

    @property
    def required(self) -> tuple[str, ...]:
        """Columns that must not be null."""
        return tuple(field["name"] for field in self.fields if not field.get("nullable", True))

    def check(self, fields: Mapping[str, DeltaType], partition_by: Sequence[str], where: str) -> None:
        """Raises `InvalidJob` if rows with these columns and partitions do not fit the table."""
        check_fits(fields, self.fields, where, self.url)
        if tuple(partition_by) != self.partition_by:
            raise InvalidJob(
                f"{where}: partition_by is {list(partition_by)}, the table {self.url} is partitioned by "
                f"{list(self.partition_by)}: leave partition_by out, or write to another table"
            )
