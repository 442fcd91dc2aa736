"""A saved session on its way to a node: whose model it is, told from its first bytes, and the bytes again."""

from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass

from ganglion.core.errors import MissingParameter
from ganglion.sessions.saved import broken, model_named
from ganglion.wire.salience import salience_pb2 as pb


@dataclass(frozen=True, slots=True)
class Upload:
    """Saved bytes that began to come."""

    model: str
    beginning: bytes
    rest: AsyncIterator[pb.SessionBytes]

    async def messages(self) -> AsyncGenerator[bytes, None]:
        """All of them as messages; to be read once."""
        yield pb.SessionBytes(data=self.beginning).SerializeToString()
        async for message in self.rest:
            yield message.SerializeToString()


async def begun(messages: AsyncIterator[pb.SessionBytes]) -> Upload:
    """Read until the model is known; raises InvalidValue for what is no saved session."""
    beginning = b""
    async for message in messages:
        beginning += message.data
        model = model_named(beginning)
        if model is not None:
            return Upload(model, beginning, messages)
    if not beginning:
        raise MissingParameter("The parameter 'data' is required.", param="data")
    raise broken("it is too short")
