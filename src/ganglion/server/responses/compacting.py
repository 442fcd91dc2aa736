"""The door of `POST /v1/responses/compact`: a long conversation to a short one that says the same.

What the user said stays as it was said. All the rest becomes the model's own summary, in one item that only
this server opens again.
"""

import time
from typing import Final

from starlette.types import Receive, Scope, Send

from ganglion.core.fold import Answer
from ganglion.server.answers import Answers
from ganglion.server.drain import Gate
from ganglion.server.http import json_response, read_json, while_connected
from ganglion.server.metering import Tab
from ganglion.server.ports import Ports
from ganglion.server.responses.desk import Desk, Exchange
from ganglion.server.responses.identity import new_id
from ganglion.server.responses.truncating import Truncating
from ganglion.server.scope import visit
from ganglion.server.settings import ServerSettings
from ganglion.server.state import State
from ganglion.wire.responses import Item, compact_body, compacted, flat
from ganglion.wire.responses.compaction import SUMMARY_TOKENS
from ganglion.wire.responses.items import InputText, MessageItem
from ganglion.wire.responses.stored import compaction

ASK: Final = (
    "Summarize everything above for yourself, so that you can go on with the task from your summary alone: "
    "what was asked for, what was decided, what was done and found out, names and values that matter, and "
    "what is left to do. Write only the summary."
)
HEADING: Final = "Summary of the conversation so far:\n"


class CompactDoor:
    """Has the model summarize what it is sent, and seals the summary."""

    def __init__(self, ports: Ports, settings: ServerSettings, gate: Gate, desk: Desk, state: State) -> None:
        self._engine = Truncating(ports.engine)
        self._settings = settings
        self._gate = gate
        self._desk = desk
        self._seal = state.seal
        self._meter = state.meter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = compact_body(await read_json(scope, receive, self._settings), ASK, SUMMARY_TOKENS)
        with self._gate.admit():
            await while_connected(scope, receive, self._compact(body, scope, receive, send))

    async def _compact(self, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = await self._desk.open(body, visit(scope))
        request = exchange.call.request
        with Tab(await self._meter.admit(exchange.visit, request)) as tab:
            async with Answers(self._engine, (request,), visit=exchange.visit, is_folded=True) as answers:
                tab.answers = answers
                (answer,) = await answers.whole()
        output = self._output(exchange, answer)
        told = compaction(new_id("resp"), int(time.time()), output, answer.finished.usage)
        await json_response(told)(scope, receive, send)

    def _output(self, exchange: Exchange, answer: Answer) -> list[Item]:
        seal = self._seal.of(exchange.tenant)
        everything = flat((*exchange.history, *exchange.call.input_items[:-1]), seal)
        said = [item for item in everything if isinstance(item, MessageItem) and item.role == "user"]
        summary = MessageItem(
            id=new_id("msg"), role="developer", content=[InputText(HEADING + answer.text("text"))]
        )
        return [*said, compacted([summary], seal, new_id("cmp"))]
