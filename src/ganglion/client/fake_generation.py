"""The sessions of the fake node, and the events of one Generate call."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Final

from google.protobuf.message import Message

from ganglion.client.fake_vocabulary import EOS, FakeVocabulary, alternatives, logprob_of, readout_of
from ganglion.core.engine import ReadoutManifest
from ganglion.core.errors import Extra, ImageBlockCut, SessionBusy, SessionDrift
from ganglion.core.request import PLACEHOLDER
from ganglion.wire.salience import salience_pb2 as pb

TTL_S: Final = 600.0


@dataclass(slots=True)
class FakeSession:
    """One session of the fake."""

    model: str
    owner: str | None
    tokens: list[int] = field(default_factory=list)
    images: list[tuple[int, int]] = field(default_factory=list)
    """Where each starts, and how many positions it takes."""
    steering: tuple[pb.Steer, ...] = ()
    ttl_s: float = TTL_S
    is_busy: bool = False
    is_suspended: bool = False

    def cut(self, length: int) -> None:
        """Drop everything from a position on; raises ImageBlockCut."""
        if any(start < length < start + count for start, count in self.images):
            raise ImageBlockCut(f"Position {length} lies inside an image.", extras=self._length())
        del self.tokens[length:]
        self.images = [(start, count) for start, count in self.images if start < length]

    def move(self, offset: int, is_truncating: bool) -> None:
        """Move the end to where a call expects it; raises as a node does."""
        if self.is_busy:
            raise SessionBusy("Another call changes the session just now.", extras=self._length())
        if offset > len(self.tokens) or (offset < len(self.tokens) and not is_truncating):
            raise SessionDrift(offset, len(self.tokens))
        self.cut(offset)

    def _length(self) -> dict[str, Extra]:
        return {"session_length": len(self.tokens)}


DEFAULT_REPLY: Final = " All is well."


def generate_events(
    request: pb.GenerateRequest,
    session: FakeSession,
    vocabulary: FakeVocabulary,
    manifest: ReadoutManifest | None,
    *,
    reply: str,
    runs_ahead: int,
) -> Generator[Message, None, None]:
    """The events of an accepted call; closing it cancels the call, and what was committed stays.

    A node that runs ahead has committed a few tokens more than it sent when it notices.
    """
    answer = vocabulary.tokens(request.prefix + reply)[: request.max_tokens]
    if len(answer) < request.max_tokens and not request.ignore_eos:
        answer.append(EOS)
    ends = [at for at, token in enumerate(answer) if token in request.stop_token_ids]
    answer = answer[: ends[0] + 1] if ends else answer
    answer, stop_text = _stopped(answer, request.stop, vocabulary)
    prompt_tokens = len(session.tokens)
    session.is_busy = True
    sent_tokens = 0
    try:
        yield pb.GenerateEvent(progress=pb.Progress(prefilled=prompt_tokens, total=prompt_tokens))
        for position, token in enumerate(session.tokens[:prompt_tokens]):
            if _is_in((*request.logprobs_ranges, *request.readout_ranges), position) and token != PLACEHOLDER:
                told = _token(request, token, position, vocabulary, manifest, is_prefill=True)
                yield pb.GenerateEvent(token=told)
        for token in answer:
            session.tokens.append(token)
            sent_tokens += 1
            position = len(session.tokens) - 1
            told = _token(request, token, position, vocabulary, manifest, is_prefill=False)
            yield pb.GenerateEvent(token=told)
    except GeneratorExit:
        session.tokens += answer[sent_tokens : sent_tokens + runs_ahead]
        raise
    finally:
        session.is_busy = False
    done = _done(request, session, prompt_tokens, answer, stop_text)
    if stop_text is not None:
        done.stop_start = _start(answer, stop_text, prompt_tokens, vocabulary)
    yield pb.GenerateEvent(done=done)


def _token(
    request: pb.GenerateRequest,
    token: int,
    position: int,
    vocabulary: FakeVocabulary,
    manifest: ReadoutManifest | None,
    *,
    is_prefill: bool,
) -> pb.Token:
    has_logprob = position > 0 and _is_in(request.logprobs_ranges, position)
    has_readout = manifest is not None and _is_in(request.readout_ranges, position)
    return pb.Token(
        id=token,
        is_prefill=is_prefill,
        position=position,
        sampled_logprob=logprob_of(token) if has_logprob else None,
        top=alternatives(token, request.logprob_top_k, vocabulary) if has_logprob else (),
        readout=readout_of(token, manifest) if has_readout and manifest is not None else (),
        piece=vocabulary.piece(token),
    )


def _stopped(
    answer: list[int], stops: Sequence[str], vocabulary: FakeVocabulary
) -> tuple[list[int], str | None]:
    """An answer up to the token that completes one of the texts, and that text."""
    text = ""
    for count, token in enumerate(answer, 1):
        text += vocabulary.piece(token).decode()
        for stop in stops:
            if stop in text:
                return answer[:count], stop
    return answer, None


def _start(answer: Sequence[int], stop_text: str, prompt_tokens: int, vocabulary: FakeVocabulary) -> int:
    """The position of the first token that has a part of a text."""
    at = "".join(vocabulary.piece(token).decode() for token in answer).index(stop_text)
    for index, token in enumerate(answer):
        at -= len(vocabulary.piece(token).decode())
        if at < 0:
            return prompt_tokens + index
    raise AssertionError("the text is in the answer")


def _done(
    request: pb.GenerateRequest,
    session: FakeSession,
    prompt_tokens: int,
    answer: Sequence[int],
    stop_text: str | None,
) -> pb.Done:
    is_end = bool(answer) and (answer[-1] == EOS or answer[-1] in request.stop_token_ids)
    is_stopped = is_end and stop_text is None
    return pb.Done(
        prompt_tokens=prompt_tokens,
        completion_tokens=len(answer),
        cached_tokens=request.offset,
        total_tokens=len(session.tokens),
        finish_reason="stop" if is_stopped or stop_text is not None else "length",
        stop_token=answer[-1] if is_stopped else None,
        stop_text=stop_text,
    )


def _is_in(ranges: Sequence[pb.Range], position: int) -> bool:
    return any(each.start <= position < each.end for each in ranges)
