"""RabbitMQ: the same server once with a quorum queue and once with a stream.

Its Erlang node needs a port mapper, which is started here on a separate port, so that it can be ended too.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import ClassVar

from bench.clients.server import Handle
from bench.harness import processes
from bench.harness.failures import ServerFailedError
from bench.harness.paths import BUILD
from bench.harness.processes import ServerProcess
from bench.systems.system import System

#: Debian's wrapper in /usr/sbin changes to another user; the server's own script does not.
SCRIPTS = (Path("/usr/lib/rabbitmq/bin/rabbitmq-server"), Path("/opt/rabbitmq/sbin/rabbitmq-server"))


class Rabbitmq(System):
    """rabbitmq-server in the foreground, with all of its files in the data directory."""

    kind: ClassVar[str]
    count_share = 0.05

    def __init__(self) -> None:
        super().__init__()
        self._port_mapper: ServerProcess | None = None

    def version(self) -> str:
        libraries = sorted(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*"))
        if not libraries:
            raise ServerFailedError("no RabbitMQ in /usr/lib/rabbitmq: run scripts/setup-bench")
        return libraries[-1].name.removeprefix("rabbitmq_server-")

    def _launch(self, data_dir: Path, port: int) -> ServerProcess:
        script = next((path for path in SCRIPTS if path.exists()), None)
        mapper = shutil.which("epmd")
        if script is None or mapper is None:
            raise ServerFailedError("no rabbitmq-server or epmd: run scripts/setup-bench")
        mapper_port = processes.free_port()
        mapper_command = [mapper, "-address", "127.0.0.1", "-port", str(mapper_port)]
        self._port_mapper = ServerProcess(mapper_command, data_dir / "epmd-output")
        processes.wait_for_port(mapper_port, self._port_mapper)
        (data_dir / "rabbitmq.conf").write_text(f"listeners.tcp.default = 127.0.0.1:{port}\n")
        (data_dir / "enabled_plugins").write_text("[].\n")
        environment = {
            "HOME": str(data_dir),
            "ERL_EPMD_PORT": str(mapper_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"bench{os.getpid()}@localhost",
            "RABBITMQ_DIST_PORT": str(processes.free_port()),
            "RABBITMQ_CONFIG_FILE": str(data_dir / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": str(data_dir / "none"),
            "RABBITMQ_MNESIA_BASE": str(data_dir / "data"),
            "RABBITMQ_LOG_BASE": str(data_dir / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(data_dir / "enabled_plugins"),
            "RABBITMQ_PID_FILE": str(data_dir / "pid"),
        }
        return ServerProcess([str(script)], data_dir / "output", environment)

    def stop(self) -> None:
        if self._server is not None:
            # The node itself shuts down cleanly on SIGTERM; the script around it only waits.
            node = next((pid for pid in self._server.tree() if _is_erlang_node(pid)), None)
            self._server.stop(node)
            self._server = None
        if self._port_mapper is not None:
            self._port_mapper.stop()
            self._port_mapper = None

    def client_command(self, kind: str, address: Handle, name: str, count: int, size: int) -> list[str]:
        target = ["--host", address.host, "--port", str(address.port), "--name", name, "--kind", self.kind]
        return [str(BUILD / "amqpbench"), kind, *target, "--count", str(count), "--size", str(size)]


def _is_erlang_node(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text().startswith("beam")
    except (FileNotFoundError, ProcessLookupError):
        return False


class RabbitmqQuorum(Rabbitmq):
    """A durable quorum queue with one member."""

    name = "rabbitmq-quorum"
    kind = "quorum"
    durability = "quorum queue of one member: confirmed after its write-ahead log was synced to disk"
    client = "amqpbench (librabbitmq, AMQP 0.9.1): confirms in a window of 2,000; prefetch 2,000"


class RabbitmqStream(Rabbitmq):
    """A stream of one member, through AMQP 0.9.1."""

    name = "rabbitmq-stream"
    kind = "stream"
    durability = "stream of one member: confirmed when written to the page cache"
    client = "amqpbench (librabbitmq, AMQP 0.9.1): confirms in a window of 2,000; prefetch 2,000"
