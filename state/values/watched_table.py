"""Debugging table that notices values changed in place and not stored, and objects stored twice.

An unstored change is lost at a restart, an eviction or a rescaling. A clean value that is handed out (or made as a
default) is kept with the encoding until the key is written, or until the next barrier, which compares the two.
"""

from collections.abc import Callable
from typing import Any

from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.values.table import Key, StateTable

_MOST_LENT = 10_000  # then all are compared and forgotten
_MOST_OWNED = 10_000  # stored values


class WatchedTable(StateTable):
    _remedy = "call update(value)"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._lent: dict[Key, tuple[Any, bytes]] = {}
        self.unwrapped: Callable[[Any], Any] = lambda held: held  # the user's value of a held value
        self._owned: dict[int, tuple[Key, Any]] = {}  # by identity, valid while the object is held

    def get(self, key: Key) -> Any:
        value = super().get(key)
        if value is not None and key not in self._dirty and key not in self._lent:
            self._lend(key, value, self._encode(value))
        return value

    def put(self, key: Key, value: Any) -> None:
        self._lent.pop(key, None)
        super().put(key, value)

    def own(self, key: Key, value: Any) -> None:
        """Notes that the mutable `value` will be stored for `key`.

        Raises `InvalidJob` if another key has the object.
        """
        owner, _ = self._owned.get(id(value), (key, value))
        if owner != key and self.unwrapped(super().get(owner)) is value:
            raise InvalidJob(
                f"{self._place(key)}: the object that is stored for it is also that of key {self._shown(owner)}, so a "
                "change for one would change the other: store a copy for each key (check_state=False switches this "
                "check off)"
            )
        if len(self._owned) >= _MOST_OWNED:
            self._owned.clear()
        self._owned[id(value)] = (key, value)

    def lend(self, key: Key, default: Any) -> Any:
        """Notes that `default` is handed out for `key`, which has no value.

        Compares an earlier default now, since each read makes another default.
        """
        before = self._lent.pop(key, None)
        if before is not None:
            self._compare_one(key, *before)
        try:
            encoded = self._encode(default)
        except InvalidJob:  # raised again when the value is stored
            return default
        self._lend(key, default, encoded)
        return default

    def freeze(self) -> None:
        self._compare()
        super().freeze()

    def _lend(self, key: Key, value: Any, encoded: bytes) -> None:
        if len(self._lent) >= _MOST_LENT:
            self._compare()
        self._lent[key] = (value, encoded)

    def _compare(self) -> None:
        lent, self._lent = self._lent, {}
        for key, (value, encoded) in lent.items():
            self._compare_one(key, value, encoded)

    def _compare_one(self, key: Key, value: Any, encoded: bytes) -> None:
        now = self._encode(value)
        # The bytes of a set also depend on the history.
        if now != encoded and self._decode(now) != self._decode(encoded):
            raise InvalidJob(
                f"{self._place(key)}: its value was changed in place but not stored, so it would be lost at "
                f"the next restart: {self._remedy} after each change (check_state=False switches this check off)"
            )
