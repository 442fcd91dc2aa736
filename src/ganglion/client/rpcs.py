"""The rpcs of `salience.v1`, typed, and whether each may be called again."""

from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from google.protobuf.message import Message

from ganglion.wire.salience import salience_pb2 as pb
from ganglion.wire.salience.service import method_path

Q = TypeVar("Q", bound=Message)
R = TypeVar("R", bound=Message)


@dataclass(frozen=True, slots=True)
class Rpc(Generic[Q, R]):
    """One rpc and its messages; a safe one may be called twice without harm."""

    name: str
    request: type[Q]
    reply: type[R]
    is_safe: bool = False

    @property
    def path(self) -> str:
        """Its path."""
        return method_path(self.name)


# A session that is opened twice is dropped by itself; one that is forked or restored twice costs its owner.
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
