"""A temporary Iceberg REST catalog: the test server of the Iceberg project, from Maven Central.

The catalog keeps its tables in SQLite, so committed tables survive a kill. The catalog uses a single connection: a
second connection might find the database locked, and then not release locks.
"""

import contextlib
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from examples.servers.base import Server
from examples.servers.maven import java_program, maven_jars

_POM = Path(__file__).with_name("iceberg.xml")
_JVM = ["-Xmx256m", "-Xms64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"]
_MAIN = "org.apache.iceberg.rest.RESTCatalogServer"


class IcebergRestServer(Server):
    name = "iceberg-rest"

    def __init__(self) -> None:
        version = re.findall(r"<iceberg.version>(.*)</iceberg.version>", _POM.read_text())[0]
        self._classpath = f"{maven_jars(_POM, f'iceberg-rest-{version}')}/*"
        super().__init__()
        self.warehouse = self.directory / "warehouse"
        self.warehouse.mkdir()

    @property
    def properties(self) -> dict[str, str]:
        """Properties of the catalog, for clients."""
        return {"type": "rest", "uri": f"http://127.0.0.1:{self.port}"}

    def command(self) -> list[str]:
        return [java_program(), *_JVM, f"-Drest.port={self.port}", "-cp", self._classpath, _MAIN]

    def environment(self) -> dict[str, str]:
        return {
            "CATALOG_CATALOG__IMPL": "org.apache.iceberg.jdbc.JdbcCatalog",
            "CATALOG_URI": f"jdbc:sqlite:{self.directory}/catalog.db",
            "CATALOG_WAREHOUSE": f"file://{self.warehouse}",
            "CATALOG_CLIENTS": "1",
            "CATALOG_REST_PORT": str(self.port),
        }

    def ready(self) -> bool:
        urllib.request.urlopen(f"{self.properties['uri']}/v1/config", timeout=2).close()
        return True


@contextlib.contextmanager
def iceberg_rest_server() -> Iterator[IcebergRestServer]:
    """A running catalog without tables."""
    server = IcebergRestServer()
    try:
        server.start()
        yield server
    finally:
        server.close()
