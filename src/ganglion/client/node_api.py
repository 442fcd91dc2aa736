"""The calls to a node that concern no one session, as flows, and what is remembered of its models."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ganglion.client.decoding import info_of, manifest_of, steering_messages
from ganglion.client.flow import Flow, call_rpc, upload_messages
from ganglion.client.rpcs import DETOKENIZE, LIST, MANIFEST, OPEN, RENDER, RESTORE, TOKENIZE, TOKENS
from ganglion.client.values import SessionInfo
from ganglion.core.engine import ReadoutManifest
from ganglion.core.errors import InvalidValue, ReadoutNotFound, ServerError, SessionNotFound
from ganglion.core.request import PLACEHOLDER, Steering
from ganglion.wire.salience import salience_pb2 as pb

_PART_TOKENS: Final = 1 << 16
_UPLOAD_BYTES: Final = 1 << 20
"""One message of a session that is restored."""


Manifests = dict[str, ReadoutManifest | None]
"""By the model's name as it was given; None of a model without readouts."""


class NodeApi:
    """One node's models, tokenizer and list of sessions."""

    def __init__(self, patience_s: float, manifests: Manifests | None = None) -> None:
        self.patience_s = patience_s
        self.manifests: Manifests = {} if manifests is None else manifests
        """Shared by all clones of a client."""
        self.end_ids: dict[str, frozenset[int]] = {}
        """The tokens that end a model's answers, as of the last session that was opened."""

    def open(self, model: str, ttl_s: float | None, steering: Steering) -> Flow[pb.OpenSessionResponse]:
        """A fresh session."""
        request = pb.OpenSessionRequest(model=model, ttl_s=ttl_s, steering=steering_messages(steering))
        opened = yield from call_rpc(OPEN, request, patience_s=self.patience_s)
        self.manifests[model] = manifest_of(opened.readout)
        self.end_ids[model] = frozenset(opened.end_token_ids)
        return opened

    def manifest(self, model: str) -> Flow[ReadoutManifest]:
        """The readouts of a model; fetched once, also where there are none."""
        if model not in self.manifests:
            self.manifests[model] = yield from self._manifest(model)
        manifest = self.manifests[model]
        if manifest is None:
            raise ReadoutNotFound(
                f"The model {model!r} has no readouts.", param="model", hint="Serve it with --concepts PACK."
            )
        return manifest

    def _manifest(self, model: str) -> Flow[ReadoutManifest | None]:
        request = pb.GetReadoutManifestRequest(model=model)
        try:
            return manifest_of((yield from call_rpc(MANIFEST, request, patience_s=self.patience_s)))
        except ReadoutNotFound:
            return None

    def render(
        self, model: str, chat: Mapping[str, object], preceding: tuple[int, ...], *, is_continued: bool
    ) -> Flow[tuple[int, ...]]:
        """Chat messages to token ids, by the model's template."""
        try:
            request = pb.RenderMessagesRequest(
                model=model, chat=json.dumps(chat), is_continued=is_continued, preceding_tokens=preceding
            )
        except (ValueError, TypeError) as error:
            raise InvalidValue(
                f"Expected messages that can be written as JSON: {error}.", param="messages"
            ) from error
        reply = yield from call_rpc(RENDER, request, patience_s=self.patience_s)
        return tuple(reply.tokens)

    def tokens(self, session_id: str, count: int) -> Flow[tuple[int, ...]]:
        """The first tokens of a session, a part at a time."""
        tokens: list[int] = []
        while len(tokens) < count:
            request = pb.GetTokensRequest(
                session_id=session_id, offset=len(tokens), limit=min(count - len(tokens), _PART_TOKENS)
            )
            reply = yield from call_rpc(TOKENS, request, patience_s=self.patience_s)
            if not reply.tokens:
                raise ServerError(f"Expected a session of {count} tokens, found {reply.total_tokens}.")
            tokens += reply.tokens
        return tuple(tokens)

    def tokenize(
        self, model: str, text: str, *, add_special: bool, parse_special: bool
    ) -> Flow[tuple[int, ...]]:
        """Text to token ids."""
        try:
            request = pb.TokenizeRequest(
                model=model, text=text, add_special=add_special, parse_special=parse_special
            )
        except (ValueError, TypeError) as error:
            raise InvalidValue(
                f"Expected text that can be written as UTF-8: {error}.", param="text"
            ) from error
        reply = yield from call_rpc(TOKENIZE, request, patience_s=self.patience_s)
        return tuple(reply.tokens)

    def detokenize(self, model: str, tokens: tuple[int, ...]) -> Flow[pb.DetokenizeResponse]:
        """Token ids to text and pieces."""
        request = pb.DetokenizeRequest(model=model, tokens=tokens)
        return (yield from call_rpc(DETOKENIZE, request, patience_s=self.patience_s))

    def sessions(self) -> Flow[tuple[SessionInfo, ...]]:
        """The caller's own sessions."""
        reply = yield from call_rpc(LIST, pb.ListSessionsRequest(), patience_s=self.patience_s)
        return tuple(info_of(each) for each in reply.sessions)

    def session(self, session_id: str) -> Flow[SessionInfo]:
        """One of them; raises SessionNotFound."""
        for info in (yield from self.sessions()):
            if info.session_id == session_id:
                return info
        raise SessionNotFound(session_id)

    def restore(self, saved: bytes) -> Flow[pb.RestoreSessionResponse]:
        """A session from bytes."""
        parts = range(0, max(1, len(saved)), _UPLOAD_BYTES)
        messages = tuple(pb.SessionBytes(data=saved[at : at + _UPLOAD_BYTES]) for at in parts)
        return (yield from upload_messages(RESTORE, messages))


# A prompt that ends in "http:" is tokenized as if it ended there, and a model that was trained on "://" as
# one token finds nothing likely after ":". So the last token is taken back, and the answer begins with its
# text.

_MAX_HEALED_TOKENS: Final = 4
"""Tokens that are taken back at most, to have whole characters."""


@dataclass(frozen=True, slots=True)
class _HealedSuffix:
    """The position from which tokens are generated again, and their text."""

    start: int
    text: str


def healed_suffix(node: NodeApi, model: str, tokens: tuple[int, ...]) -> Flow[_HealedSuffix | None]:
    """The last tokens of a prompt as text; None where the last is no ordinary token, or the only one.

    A control token is not generated again: its text, tokenized as text, is something else.
    """
    for count in range(1, min(_MAX_HEALED_TOKENS, len(tokens) - 1) + 1):
        last = tokens[-count:]
        if PLACEHOLDER in last:
            return None
        written = b"".join((yield from node.detokenize(model, last)).pieces)
        try:
            text = written.decode()
        except UnicodeDecodeError:
            continue
        again = yield from node.tokenize(model, text, add_special=False, parse_special=False)
        return _HealedSuffix(len(tokens) - count, text) if text and again == last else None
    return None
