"""Begins of generations."""

from typing import Literal, TypeAlias

import msgspec

GenerationKind: TypeAlias = Literal["start", "recovery", "rescale", "replace"]
_PLANNED: tuple[tuple[str, GenerationKind], ...] = (  # in histories without kinds
    ("started by ", "start"),
    ("rescaled from ", "rescale"),
    ("its program was replaced", "replace"),
)


class RecoveryStatus(msgspec.Struct, frozen=True):
    token: int
    reason: str
    started_ms: int  # failure noticed
    slots_ready_ms: int | None  # all slots registered
    running_ms: int | None
    duration_ms: int | None
    stored_kind: GenerationKind | None = msgspec.field(default=None, name="kind")  # None: of an earlier release

    @property
    def kind(self) -> GenerationKind:
        if self.stored_kind is not None:
            return self.stored_kind
        return next((kind for text, kind in _PLANNED if self.reason.startswith(text)), "recovery")
