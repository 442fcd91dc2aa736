"""The requests inside vLLM: each a task that reads its answer, and one frame for all that is ready at once.

Law: an aborted request is reported gone when vLLM was told to leave it out, and not before. The death of
vLLM's engine is the end of this process, which the server tells everybody who waits.
"""

import asyncio
from contextlib import aclosing
from time import monotonic
from typing import Final

from vllm.exceptions import VLLMClientError
from vllm.inputs import TokensPrompt
from vllm.inputs.engine import MultiModalInput, TokensInput, tokens_input
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.metrics.stats import SchedulerStats

from ganglion.core.errors import (
    EngineFailed,
    EngineUnavailable,
    GanglionError,
    InvalidValue,
    UnsupportedParameter,
    VisionUnsupported,
)
from ganglion.core.model import WorkerLoad
from ganglion.engines.supervision.frame_socket import FrameSocket
from ganglion.engines.supervision.ipc import (
    Abort,
    Embed,
    KvLoaded,
    KvSaved,
    LoadKv,
    PlaceImage,
    SaveKv,
    SequenceEnd,
    SequenceGone,
    SequenceUpdate,
    Stepped,
    Submit,
    ToWorker,
    WorkerRefusal,
)
from ganglion.engines.vllm.worker.engine_loading import LoadedModel
from ganglion.engines.vllm.worker.generation import Generation
from ganglion.engines.vllm.worker.grammar_trials import GrammarTrials
from ganglion.engines.vllm.worker.group_end import end_all
from ganglion.engines.vllm.worker.kept_pictures import KeptPictures
from ganglion.engines.vllm.worker.picture_processing import ProcessedPicture, with_pictures
from ganglion.engines.vllm.worker.readout_exchange import ReadoutFollower
from ganglion.engines.vllm.worker.readout_stream import ReadoutStream
from ganglion.engines.vllm.worker.sampling_arguments import last_token_params, sampling_params

_ENGINE_DIED: Final = 70
"""The exit code after the death of a process that vLLM started."""


class RequestTable:
    """Everything that runs, on the event loop."""

    def __init__(self, frames: FrameSocket) -> None:
        self._frames = frames
        self._model: LoadedModel | None = None
        self._grammars: GrammarTrials | None = None
        self._pictures: KeptPictures | None = None
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._embedding: set[asyncio.Task[None]] = set()
        self._updates: list[SequenceUpdate] = []
        self._is_flushing = False
        self._stats = SchedulerStats()
        self._step_s = 0.0
        self._stepped_s = monotonic()

    def begin(self, model: LoadedModel) -> None:
        """Take requests from now on."""
        self._model = model
        self._grammars = GrammarTrials(model.vocabulary)
        if model.pictures is not None:
            self._pictures = KeptPictures(model.pictures, self._frames.send, self._refuse)
        self._step_s = 0.0

    def note_step(self, stats: SchedulerStats) -> None:
        """The engine has taken a step: a sign of progress, whether or not a token came of it."""
        now_s = monotonic()
        if self._stats.num_running_reqs:
            self._step_s += now_s - self._stepped_s
        self._stats, self._stepped_s = stats, now_s
        self._flush_soon()

    def take(self, frame: ToWorker) -> None:
        """Do what a frame says."""
        match frame:
            case Submit():
                if not self._tasks:
                    self._stepped_s = monotonic()
                task = asyncio.create_task(self._run(frame))
                self._tasks[frame.id] = task
                task.add_done_callback(lambda _: self._tasks.pop(frame.id, None))
            case Abort(id=number):
                task_or_none = self._tasks.get(number)
                if task_or_none is None:
                    self._say_gone(number)
                else:
                    task_or_none.add_done_callback(lambda _: self._say_gone(number))
                    task_or_none.cancel()
            case Embed():
                embedding = asyncio.create_task(self._embed(frame))
                self._embedding.add(embedding)
                embedding.add_done_callback(self._embedding.discard)
            case PlaceImage() if self._pictures is not None:
                self._pictures.ask(frame)
            case PlaceImage(id=number):
                self._refuse(number, VisionUnsupported("vLLM runs this model for text alone."))
            case SaveKv(id=number):
                self._frames.send(KvSaved(number, b""))
            case LoadKv(id=number):
                self._frames.send(KvLoaded(number, 0))
            case _:
                raise AssertionError(f"{type(frame).__name__} is no frame for the event loop")

    def _say_gone(self, number: int) -> None:
        self._frames.send(SequenceGone(number))
        self._flush_soon()

    async def _run(self, submit: Submit) -> None:
        assert self._model is not None
        llm = self._model.llm
        follower = None if self._model.readouts is None else self._model.readouts.follow(submit)
        try:
            await self._generate(self._model, submit, follower)
        except GanglionError as error:
            self._tell(_failed(submit.id, error.message, error.code))
        except EngineDeadError:
            end_all(_ENGINE_DIED)
        except (VLLMClientError, ValueError) as error:
            message = f"vLLM refuses the request: {error}"
            self._tell(_failed(submit.id, message, UnsupportedParameter.code))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this request's end
            if llm.errored:
                end_all(_ENGINE_DIED)
            cause = error.__cause__ or error
            self._tell(_failed(submit.id, f"vLLM failed: {type(cause).__name__}: {cause}", None))
        finally:
            if follower is not None:
                follower.close()

    async def _generate(self, model: LoadedModel, submit: Submit, follower: ReadoutFollower | None) -> None:
        generation = Generation(submit, model.vocabulary, monotonic())
        pictures: list[tuple[int, ProcessedPicture]] = []
        if submit.images and self._pictures is not None:
            pictures = self._pictures.of_request(submit.tenant, submit.images)
        stream = None
        if follower is not None and follower.spans:
            stream = self._readout_stream(submit, follower, pictures)
        assert self._grammars is not None
        unnamed = await self._grammars.tried(submit)
        params = sampling_params(
            submit, model.vocabulary.end_tokens, unnamed, can_bias=model.can_bias, follower=follower
        )
        answer = model.llm.generate(
            _prompt(submit, pictures), params, str(submit.id), priority=submit.priority
        )
        async with aclosing(answer) as outputs:
            async for output in outputs:
                update = generation.take(output, monotonic())
                for each in (update,) if stream is None else await stream.complete(update, generation.tokens):
                    self._tell(each)
                if generation.is_ended:
                    return
        self._tell(_failed(submit.id, "vLLM ended the answer without a reason.", None))

    def _readout_stream(
        self, submit: Submit, follower: ReadoutFollower, pictures: list[tuple[int, ProcessedPicture]]
    ) -> ReadoutStream:
        """What puts readouts beside a request's tokens."""
        model = self._model
        assert model is not None and model.readouts is not None
        exchange = model.readouts

        async def run_last(tokens: list[int]) -> bytes:
            position = len(tokens) - 1
            last = exchange.follow_spans(((position, position + 1),), submit)
            try:
                prompt = _rendered(tokens, submit, pictures)
                params = last_token_params(last)
                answer = model.llm.generate(prompt, params, f"{submit.id}-last", priority=submit.priority)
                async with aclosing(answer) as outputs:
                    async for _ in outputs:
                        pass
                return (await last.until(position + 1))[position]
            finally:
                last.close()

        return ReadoutStream(submit, follower, model.vocabulary.piece, run_last)

    async def _embed(self, frame: Embed) -> None:
        assert self._model is not None
        pooler, llm = self._model.pooler, self._model.llm
        try:
            if pooler is None:
                raise EngineUnavailable("A model that generates makes no vectors with vLLM.")
            self._frames.send(await pooler.answer(frame))
        except EngineDeadError:
            end_all(_ENGINE_DIED)
        except GanglionError as error:
            self._refuse(frame.id, error)
        except (VLLMClientError, ValueError) as error:
            self._refuse(frame.id, InvalidValue(f"vLLM refuses the input: {error}", param="input"))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this question's end
            if llm.errored:
                end_all(_ENGINE_DIED)
            cause = error.__cause__ or error
            self._refuse(frame.id, EngineFailed(f"vLLM failed: {type(cause).__name__}: {cause}"))

    def _refuse(self, number: int, error: GanglionError) -> None:
        self._frames.send(WorkerRefusal(number, error.code, error.message, error.hint, error.extras))

    def _tell(self, update: SequenceUpdate) -> None:
        self._updates.append(update)
        self._flush_soon()

    def _flush_soon(self) -> None:
        """Send what is there once everybody who has something ready has run."""
        if not self._is_flushing:
            self._is_flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flushing = False
        updates, self._updates = self._updates, []
        self._frames.send(Stepped(updates, self._load()))

    def _load(self) -> WorkerLoad:
        stats = self._stats
        kv_tokens = 0 if self._model is None else self._model.kv_tokens
        waiting = stats.num_waiting_reqs + stats.num_skipped_waiting_reqs
        if not self._tasks:
            return WorkerLoad(step_s=self._step_s)
        return WorkerLoad(
            running=stats.num_running_reqs,
            waiting=waiting,
            kv_used=round(stats.kv_cache_usage * kv_tokens),
            step_s=self._step_s,
        )


def _prompt(
    submit: Submit, pictures: list[tuple[int, ProcessedPicture]]
) -> TokensPrompt | TokensInput | MultiModalInput:
    """The token ids, kept apart from another tenant's; with a format, checked beside the event loop."""
    if submit.grammar is None or pictures:
        return _rendered(submit.tokens, submit, pictures)
    prompt = TokensPrompt(prompt_token_ids=submit.tokens)
    if submit.salt:
        prompt["cache_salt"] = submit.salt
    return prompt


def _rendered(
    tokens: list[int], submit: Submit, pictures: list[tuple[int, ProcessedPicture]]
) -> TokensInput | MultiModalInput:
    """Token ids of a request's with its pictures."""
    if pictures:
        return with_pictures(tokens, pictures, submit.salt)
    return tokens_input(tokens, cache_salt=submit.salt or None)


def _failed(number: int, message: str, code: str | None) -> SequenceUpdate:
    return SequenceUpdate(number, end=SequenceEnd("failed", 0, None, 0.0, 0.0, 0.0, message, code))
