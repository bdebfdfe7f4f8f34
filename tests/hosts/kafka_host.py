"""Kafka on an address of a host: `python -m tests.hosts.kafka_host ADDRESS:PORT TOPIC PARTITIONS`.

Prints a line once the topic exists, and serves until the end of standard input, or for ever without standard input.
"""

import signal
import sys

from examples.servers.kafka import KafkaServer


class KafkaOfHost(KafkaServer):
    def __init__(self, address: str) -> None:
        self._address = address
        super().__init__({})

    @property
    def bootstrap(self) -> str:
        return self._address


def main() -> None:
    address, topic, partitions = sys.argv[1:]
    server = KafkaOfHost(address)
    server.start()
    server.create_topic(topic, int(partitions))
    print("serves", flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
