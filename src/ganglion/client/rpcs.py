"""The rpcs of `salience.v1` as the client calls them, typed, and which of them may be called again."""

from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from google.protobuf.message import Message

from ganglion.wire.salience import salience_pb2 as pb

Q = TypeVar("Q", bound=Message)
R = TypeVar("R", bound=Message)

SERVICE: Final = "salience.v1.Salience"


@dataclass(frozen=True, slots=True)
class Rpc(Generic[Q, R]):
    """One rpc: what it takes and gives; a safe one changes nothing that calling it twice could spoil."""

    name: str
    request: type[Q]
    reply: type[R]
    is_safe: bool = False

    @property
    def path(self) -> str:
        """As gRPC names it."""
        return f"/{SERVICE}/{self.name}"


# A session that is opened twice is forgotten by itself; one that is forked or restored twice costs its owner.
OPEN: Final = Rpc("OpenSession", pb.OpenSessionRequest, pb.OpenSessionResponse, is_safe=True)
GENERATE: Final = Rpc("Generate", pb.GenerateRequest, pb.GenerateEvent)
APPEND_IMAGE: Final = Rpc("AppendImage", pb.AppendImageRequest, pb.AppendImageResponse)
FORK: Final = Rpc("ForkSession", pb.ForkSessionRequest, pb.ForkSessionResponse)
TRUNCATE: Final = Rpc("TruncateSession", pb.TruncateSessionRequest, pb.TruncateSessionResponse)
LIST: Final = Rpc("ListSessions", pb.ListSessionsRequest, pb.ListSessionsResponse, is_safe=True)
CLOSE: Final = Rpc("CloseSession", pb.CloseSessionRequest, pb.CloseSessionResponse)
SAVE: Final = Rpc("SaveSession", pb.SaveSessionRequest, pb.SessionBytes)
RESTORE: Final = Rpc("RestoreSession", pb.SessionBytes, pb.RestoreSessionResponse)
SUSPEND: Final = Rpc("SuspendSession", pb.SuspendSessionRequest, pb.SuspendSessionResponse)
MANIFEST: Final = Rpc("GetReadoutManifest", pb.GetReadoutManifestRequest, pb.ReadoutManifest, is_safe=True)
TOKENS: Final = Rpc("GetTokens", pb.GetTokensRequest, pb.GetTokensResponse, is_safe=True)
RENDER: Final = Rpc("RenderMessages", pb.RenderMessagesRequest, pb.RenderMessagesResponse, is_safe=True)
TOKENIZE: Final = Rpc("Tokenize", pb.TokenizeRequest, pb.TokenizeResponse, is_safe=True)
DETOKENIZE: Final = Rpc("Detokenize", pb.DetokenizeRequest, pb.DetokenizeResponse, is_safe=True)
