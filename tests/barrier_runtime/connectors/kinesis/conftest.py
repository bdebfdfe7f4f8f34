"""moto's Kinesis in this process, corrected where it differs from Kinesis, with faults injected before the answers.

A split shard keeps its records, and the iterator of the shard ends after these records.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kinesis_world import KinesisWorld
from moto.kinesis.models import KinesisBackend, Shard, Stream


@pytest.fixture
def make_kinesis(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., KinesisWorld]]:
    """`make_kinesis(shards=1)`: a new stream for this test, served by the moto server that also serves S3."""
    worlds: dict[str, KinesisWorld] = {}

    def make(shards: int = 1) -> KinesisWorld:
        world = KinesisWorld(s3_endpoint, shards)
        worlds[world.name] = world
        return world

    get_records = KinesisBackend.get_records

    def records(self: KinesisBackend, arn: Any, iterator: str, limit: Any) -> Any:
        from moto.kinesis.utils import decompose_shard_iterator

        name, shard, _ = decompose_shard_iterator(iterator)
        worlds[name].answer()
        following, found, behind = get_records(self, arn, iterator, limit)
        if worlds[name].behind_ms:
            behind = worlds[name].behind_ms.popleft()
        shard_is_open = self.describe_stream(stream_arn=None, stream_name=name).get_shard(shard).is_open
        return (following if shard_is_open or found else None), found, behind

    def split(self: Stream, shard_to_split: str, starts_at: str) -> None:
        shard = self.shards[shard_to_split]
        last = max(each._shard_id for each in self.shards.values())
        middle = (shard.starting_hash + shard.ending_hash) // 2
        for number, (begin, end) in enumerate(((shard.starting_hash, middle), (middle, shard.ending_hash)), 1):
            child = Shard(last + number, starting_hash=begin, ending_hash=end, parent=shard.shard_id)
            self.shards[child.shard_id] = child
        shard.is_open, shard.starting_hash, shard.ending_hash = False, -1, -1  # a closed shard takes no more records

    monkeypatch.setattr(KinesisBackend, "get_records", records)
    monkeypatch.setattr(Stream, "split_shard", split)
    yield make
    for world in worlds.values():
        world.client.delete_stream(StreamName=world.name)
