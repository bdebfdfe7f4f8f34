"""Makes the archive of classes from which brokers of tests start (`class_archive` of examples/servers/kafka.py), if
this machine has no archive for its Java and this Kafka. Without an archive tests are only slower.
"""

import os
import sys

from examples.servers.kafka import KafkaServer, class_archive
from examples.servers.maven import java_program


class _Noting(KafkaServer):
    """A process that writes the list of its loaded classes when it ends."""

    def __init__(self, draft: str) -> None:
        super().__init__({})  # formatting the folder needs no archive
        self.jvm = (*self.jvm, f"-XX:ArchiveClassesAtExit={draft}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off")


def main() -> int:
    wanted = class_archive(java_program())
    if wanted.exists():
        return 0
    draft = wanted.with_suffix(f".{os.getpid()}")
    server = _Noting(str(draft))
    try:
        server.start()
        server.create_topic("classes", 2)
        server.stop()
    finally:
        server.close()
    if draft.exists():
        draft.replace(wanted)
    else:
        print("no archive of Kafka's classes, tests take longer", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
