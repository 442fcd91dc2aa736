"""The library people import: sessions, scores and readouts of a node, blocking or in an event loop.

from ganglion import Client

with Client() as client, client.session("llama") as session:
    session.append("Once upon a time")
    print(session.generate(max_tokens=40).text())
"""

from ganglion.client._async.client import AsyncClient
from ganglion.client._async.generation import AsyncGeneration
from ganglion.client._async.session import AsyncSession
from ganglion.client._sync.client import Client
from ganglion.client._sync.generation import Generation
from ganglion.client._sync.session import Session
from ganglion.client.errors import Disconnected, SessionDivergence
from ganglion.client.options import GenerateOptions, Positions
from ganglion.client.values import (
    Branch,
    Chunk,
    Done,
    Event,
    Image,
    ImageAppended,
    Progress,
    Readout,
    Result,
    Score,
    SessionInfo,
    Suspended,
    TokenEvent,
)
from ganglion.core.engine import ReadoutManifest
from ganglion.core.errors import (
    GanglionError,
    SessionBusy,
    SessionDrift,
    SessionNotFound,
)
from ganglion.core.events import Alternative
from ganglion.core.request import PLACEHOLDER, Steer

__all__ = [
    "PLACEHOLDER",
    "Alternative",
    "AsyncClient",
    "AsyncGeneration",
    "AsyncSession",
    "Branch",
    "Chunk",
    "Client",
    "Disconnected",
    "Done",
    "Event",
    "GanglionError",
    "GenerateOptions",
    "Generation",
    "Image",
    "ImageAppended",
    "Positions",
    "Progress",
    "Readout",
    "ReadoutManifest",
    "Result",
    "Score",
    "Session",
    "SessionBusy",
    "SessionDivergence",
    "SessionDrift",
    "SessionInfo",
    "SessionNotFound",
    "Steer",
    "Suspended",
    "TokenEvent",
]
