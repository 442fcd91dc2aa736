"""A gateway that says what a test has it say: the admin routes alone, over a real socket."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from ganglion.wire.fleet import ReplicaState
from ganglion.wire.fleet_overview import (
    Drain,
    FleetActionDone,
    FleetOverview,
    Move,
    NodeDevice,
    NodeOverview,
    Unservable,
    encode,
    parse_drain,
    parse_move,
    status_of,
)

KEY = "sk-operator"
NO_KEY = b'{"error":{"message":"A key is needed.","type":"t","param":null,"code":"invalid_api_key"}}'
NO_ROUTE = b'{"error":{"message":"No such route.","type":"t","param":null,"code":"not_found"}}'
NO_NODE = b'{"error":{"message":"There is no node \'z\'.","type":"t","param":"node","code":"invalid_value"}}'


def node(name: str, *models: ReplicaState, healthy: bool = True, **facts: object) -> NodeOverview:
    """A node as a gateway tells it, well unless something else is said."""
    told: dict[str, object] = {
        "url": f"http://{name}:8080",
        "kind": "ganglion",
        "draining": False,
        "cooling": False,
        "in_flight": 0,
        "heard_s_ago": 0.4,
        "error": None,
        "version": "0.1.0",
        "grpc": None,
        "epoch": None,
        "devices": (NodeDevice(-1, "cpu", 16384, 6144),),
        **facts,
    }
    return NodeOverview(name=name, healthy=healthy, models=models, **told)  # type: ignore[arg-type]


def fleet(*nodes: NodeOverview, unservable: tuple[Unservable, ...] = ()) -> FleetOverview:
    """Nodes as a whole."""
    return FleetOverview(status=status_of(nodes, unservable), nodes=nodes, unservable=unservable)


class PlayedGateway:
    """What it says, and what was asked of it."""

    def __init__(self) -> None:
        self.overview = fleet()
        self.asked: list[Drain | Move] = []
        self.looks = 0
        self.pause_s = 0.0

    def answer(self, method: str, path: str, key: str | None, body: bytes) -> tuple[int, bytes]:
        """The status and body for one request."""
        if key != f"Bearer {KEY}":
            return 401, NO_KEY
        match method, path:
            case "GET", "/fleet":
                self.looks += 1
                return 200, encode(self.overview)
            case "POST", "/fleet/drain":
                drain = parse_drain(body)
                self.asked.append(drain)
                if drain.node == "z":
                    return 400, NO_NODE
                return 200, encode(FleetActionDone(steps=(f"{drain.node} gets no new work",)))
            case "POST", "/fleet/move":
                self.asked.append(parse_move(body))
                time.sleep(self.pause_s)
                return 200, encode(FleetActionDone(steps=("loaded smollm2 on b", "unloaded smollm2 on a")))
        return 404, NO_ROUTE


@contextmanager
def playing() -> Iterator[tuple[PlayedGateway, str]]:
    """A gateway on a free port, and its address."""
    played = PlayedGateway()

    class Handler(BaseHTTPRequestHandler):
        def _do(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            status, content = played.answer(self.command, self.path, self.headers.get("authorization"), body)
            self.send_response(status)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = _do  # noqa: N815 (the library's names)
        do_POST = _do  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield played, f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
