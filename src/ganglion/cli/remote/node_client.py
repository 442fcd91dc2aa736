"""Calls of commands to a running node: management and scores, with the standard library alone."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Final

from cyclopts import Group, Parameter

from ganglion.cli.remote.http_client import HttpCaller, ServerKind
from ganglion.core.engine import LoadProgress
from ganglion.core.errors import ServerError
from ganglion.wire.health import Health
from ganglion.wire.management import LoadBody, LoadResult, ManagedModel, UnloadBody
from ganglion.wire.score import ScoreBody, Scores
from ganglion.wire.tokenizer import TokenizeAnswer, TokenizeBody

NODE: Final = Group("Node", sort_key=5)
DEFAULT_URL: Final = "http://127.0.0.1:8080"
_SILENCE_S: Final = 60.0
"""A node that loads says at least every ten seconds that it is there."""
_DRAIN_S: Final = 3600.0
"""A model leaves when its requests are finished; none runs longer than this by default."""
_SCORE_S: Final = 600.0
"""A long prompt takes a slow machine minutes, and the answer comes as a whole."""
_NODE_KIND: Final = ServerKind(
    "node", DEFAULT_URL, flag="--url", variable="GANGLION_URL", start="ganglion serve"
)


@Parameter(name="*", group=NODE)
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFlags:
    """The node to talk to."""

    url: Annotated[
        str,
        Parameter(
            help=f"Address of the node (default {DEFAULT_URL}).", env_var="GANGLION_URL", show_default=False
        ),
    ] = DEFAULT_URL
    api_key: Annotated[
        str | None, Parameter(help="A key of the node.", env_var="GANGLION_API_KEY", show_default=False)
    ] = None

    def client(self) -> "NodeApiClient":
        """A client for the node; raises InvalidValue where the address is none."""
        return NodeApiClient(self.url, self.api_key)


NODE_UNSET: Final = NodeFlags()


class NodeApiClient:
    """One node; every call is a connection of its own."""

    def __init__(self, url: str, api_key: str | None) -> None:
        self._caller = HttpCaller(_NODE_KIND, url, api_key)

    def models(self) -> list[ManagedModel]:
        """`GET /models`."""
        return self._caller.ask("GET", "/models", list[ManagedModel])

    def health(self) -> Health:
        """`GET /health`."""
        return self._caller.ask("GET", "/health", Health)

    def load(self, body: LoadBody) -> Iterator[LoadProgress]:
        """`POST /models/load`, step by step; the last step is the loaded model, a failure is raised."""
        for event, data in self._caller.events("/models/load", body, _SILENCE_S):
            if event == "loaded":
                loaded = self._caller.decoded(data, LoadResult)
                yield LoadProgress(loaded.model, loaded.status)
                return
            if event == "progress":
                yield self._caller.decoded(data, LoadProgress)
        raise ServerError(
            f"{self._caller.url} broke off while the model was loading.", hint="ganglion models ps"
        )

    def begin_load(self, body: LoadBody) -> LoadResult:
        """`POST /models/load` without waiting for the load."""
        return self._caller.ask("POST", "/models/load?wait=false", LoadResult, body)

    def unload(self, body: UnloadBody) -> LoadResult:
        """`POST /models/unload`; returns when the model is unloaded."""
        return self._caller.ask("POST", "/models/unload", LoadResult, body, _DRAIN_S)

    def score(self, body: ScoreBody) -> Scores:
        """`POST /v1/score`."""
        return self._caller.ask("POST", "/v1/score", Scores, body, _SCORE_S)

    def tokenize(self, body: TokenizeBody) -> TokenizeAnswer:
        """`POST /tokenize`."""
        return self._caller.ask("POST", "/tokenize", TokenizeAnswer, body)
