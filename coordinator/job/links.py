"""Slots that do not hear each other although both reach the coordinator. Pure.
Design: docs/design/several-hosts.md.
"""

from dataclasses import dataclass, field

from barrier_runtime.coordinator.job.slot import RegisteredSlot
from barrier_runtime.coordinator.job.slots import SlotTable
from barrier_runtime.coordinator.status.status import SilentLink

_FORGET_MS = 60_000


@dataclass
class _Pair:
    uuids: frozenset[str]
    failed_ms: int
    failures: int = 1


@dataclass
class Links:
    heartbeat_ms: int
    slot_timeout_ms: int
    _pairs: dict[tuple[int, int], _Pair] = field(default_factory=dict)

    @property
    def limit_ms(self) -> int:
        """Silence that counts as a failure; within the slot timeout."""
        return max(3 * self.heartbeat_ms, self.slot_timeout_ms - 2 * self.heartbeat_ms)

    def silent(self, slots: SlotTable, now_ms: int) -> tuple[SilentLink, ...]:
        found = []
        for slot in slots.connected:
            for index, quiet_ms in slot.unheard.items():
                peer = slots.at(index)
                if peer is not None and peer.connected:
                    counted_ms = min(quiet_ms, self._in_time_ms(slot, now_ms), self._in_time_ms(peer, now_ms))
                    if counted_ms >= self.limit_ms:
                        pair = self._pairs.get(_key(slot, peer))
                        failures = 0 if pair is None or pair.uuids != _uuids(slot, peer) else pair.failures
                        found.append(_link(slot, peer, counted_ms, failures))
        return tuple(found)

    def failed(self, slots: SlotTable, link: SilentLink, now_ms: int) -> bool:
        """Records a failure, once per `limit_ms`. Returns whether the same processes failed before."""
        slot, peer = slots.at(link.slot), slots.at(link.peer)
        assert slot is not None, "a silent link of an unknown slot"
        assert peer is not None, "a silent link to an unknown slot"
        key, uuids = _key(slot, peer), _uuids(slot, peer)
        pair = self._pairs.get(key)
        if pair is None or pair.uuids != uuids or now_ms - pair.failed_ms >= max(_FORGET_MS, 3 * self.limit_ms):
            self._pairs[key] = _Pair(uuids, now_ms)
            return False
        if now_ms - pair.failed_ms >= self.limit_ms:
            pair.failed_ms, pair.failures = now_ms, pair.failures + 1
        return pair.failures > 1

    def _in_time_ms(self, slot: RegisteredSlot, now_ms: int) -> int:
        """Time of heartbeats without a gap; 0 during a gap."""
        if now_ms - slot.beat_ms > 3 * self.heartbeat_ms:
            return 0
        return now_ms - slot.in_time_since_ms


def slot_to_move(slots: SlotTable, link: SilentLink) -> RegisteredSlot | None:
    """Slot on the host with fewer slots; of two such slots, the higher number."""
    pair = [slot for slot in (slots.at(link.slot), slots.at(link.peer)) if slot is not None and slot.connected]
    hosts = [slot.register.host for slot in slots]
    return min(pair, key=lambda slot: (hosts.count(slot.register.host), -slot.index), default=None)


def silence_of(links: tuple[SilentLink, ...]) -> str:
    return "; ".join(
        f"slot {link.slot} of host {link.host} has not heard slot {link.peer} of host {link.peer_host} for "
        f"{link.silent_ms / 1000:.0f} s, and both reach the coordinator"
        for link in links[:4]
    )


def _link(slot: RegisteredSlot, peer: RegisteredSlot, silent_ms: int, failures: int) -> SilentLink:
    return SilentLink(slot.index, slot.register.host, peer.index, peer.register.host, silent_ms, failures)


def _key(slot: RegisteredSlot, peer: RegisteredSlot) -> tuple[int, int]:
    return min(slot.index, peer.index), max(slot.index, peer.index)


def _uuids(slot: RegisteredSlot, peer: RegisteredSlot) -> frozenset[str]:
    return frozenset((slot.uuid, peer.uuid))
