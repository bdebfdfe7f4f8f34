"""A temporary HDFS: name node and data node of Hadoop in a single process, from Maven Central."""

import contextlib
import json
import re
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

from examples.servers.base import Server, free_port
from examples.servers.maven import java_program, maven_jars

_POM = Path(__file__).with_name("hdfs.xml")
_QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
_JVM = ["-Xmx256m", "-Xms64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", _QUIET]
_MAIN = "org.apache.hadoop.test.MiniDFSClusterManager"
_SETTINGS = {"dfs.replication": 1, "dfs.namenode.safemode.extension": 0, "dfs.heartbeat.interval": 1}


class HdfsServer(Server):
    """An HDFS. `port`: of the REST interface."""

    name = "hdfs"

    def __init__(self) -> None:
        version = re.findall(r"<hadoop.version>(.*)</hadoop.version>", _POM.read_text())[0]
        self._classpath = f"{maven_jars(_POM, f'hdfs-{version}')}/*"
        super().__init__()
        self.rpc_port = free_port()

    def command(self) -> list[str]:
        settings = {**_SETTINGS, "hdfs.minidfs.basedir": self.directory / "data"}
        return [
            *(java_program(), *_JVM, f"-Djava.io.tmpdir={self.directory}", "-cp", self._classpath, _MAIN),
            *([] if (self.directory / "data").exists() else ["-format"]),
            *("-httpport", str(self.port), "-nnport", str(self.rpc_port)),
            *(part for name, value in settings.items() for part in ("-D", f"{name}={value}")),
        ]

    def environment(self) -> dict[str, str]:
        return {"HADOOP_USER_NAME": "root"}

    def ready(self) -> bool:
        query = "jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState"
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/{query}", timeout=2) as answer:
            (state,) = json.load(answer)["beans"]
        urllib.request.urlopen(f"http://127.0.0.1:{self.port}/webhdfs/v1/?op=LISTSTATUS", timeout=10).close()
        return bool(state["FSState"] == "Operational" and state["NumLiveDataNodes"] == 1)

    def new_url(self) -> str:
        """URL of a new folder."""
        return f"webhdfs://127.0.0.1:{self.port}/test-{uuid.uuid4().hex[:12]}/some"


@contextlib.contextmanager
def hdfs_server() -> Iterator[HdfsServer]:
    """A running HDFS without files."""
    server = HdfsServer()
    try:
        server.start()
        yield server
    finally:
        server.close()
