"""Chat over tokens: template and tokenizer in front of a token engine, parts behind it."""

import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import assert_never

from ganglion.core.attachments import attachments_of, check_attachments
from ganglion.core.delivery import Room, Sink, give, pulled, run_into
from ganglion.core.engine import ReadPrompt, TokenEngine
from ganglion.core.errors import (
    GanglionError,
    InvalidValue,
    ModelNotFound,
    UnsupportedParameter,
)
from ganglion.core.events import Event, Failed, Finished, Pieces, Progress, Scored, Started, TokenEvent
from ganglion.core.model import ModelFacts
from ganglion.core.request import (
    ChatPrompt,
    ImageBlock,
    Prompt,
    Request,
    TextPrompt,
    TokenPrompt,
    TokenRequest,
    ToolUse,
    salt_of,
)
from ganglion.core.sampling import resolve
from ganglion.engines.images.placing import cut_before, is_wave, with_images
from ganglion.engines.prompt_checks import check_tokens, fitted
from ganglion.engines.rendering.image_marks import SplitText, has_all, marked, split
from ganglion.engines.rendering.renderer import Renderer
from ganglion.engines.supervision.ipc import SpecialTokens
from ganglion.text.constraint import compose
from ganglion.text.markers import MarkerFamily, family_of, opens_reasoning
from ganglion.text.parts import CallRules, PartSplitter
from ganglion.text.tools.families import ToolFamily, callable_tools
from ganglion.text.tools.families import family_of as tool_family_of
from ganglion.text.tools.tool_grammar import tool_call_grammar

PlaceFile = Callable[[bytes, str], Awaitable[ImageBlock]]
"""From a file and its tenant to what it becomes."""


async def control_ids(tokens: TokenEngine, markers: Iterable[str]) -> dict[str, int]:
    """The ids of those markers that are one token, and only where special tokens are read."""
    found: dict[str, int] = {}
    for marker in markers:
        special = await tokens.tokenize(marker, add_special=False, parse_special=True)
        plain = await tokens.tokenize(marker, add_special=False, parse_special=False)
        if len(special) == 1 and plain != special:
            found[marker] = special[0]
    return found


GENERIC_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""ChatML, for model files that carry no template."""


class TextEngine:
    """Turns requests into token requests and token events into text events."""

    def __init__(
        self,
        model_id: str,
        tokens: TokenEngine,
        renderer: Renderer,
        facts: ModelFacts,
        *,
        context: int,
        chat_template: str | None,
        special_tokens: Callable[[], SpecialTokens] = SpecialTokens,
        place: PlaceFile | None = None,
        senses: tuple[str, ...] = (),
    ) -> None:
        """`special_tokens` gives the vocabulary's own, once the model is loaded.

        `place` says what an image becomes, where the engine takes any: `senses` say of which kinds.
        """
        self._place = place
        self._senses = senses
        self._is_typed = False
        """Whether the template wants contents as lists of parts, as was seen with an image."""
        self._special_tokens = special_tokens
        self._model_id = model_id
        self._tokens = tokens
        self._renderer = renderer
        self._facts = facts
        self._context = context
        self._template = chat_template or facts.chat_template or GENERIC_TEMPLATE
        self._family: MarkerFamily = family_of(self._template)
        self._tool_family: ToolFamily = tool_family_of(self._template)
        self._control_ids: dict[str, int] | None = None
        """Of the tool family's markers; None until somebody asks for tools."""
        # A model that nobody taught to reason, held to JSON, would take the marker for its way out.
        self._can_reason = any(sign in self._template for sign in self._family.signs)

    def generate(self, request: Request) -> AsyncGenerator[Event, None]:
        """Answer one request."""
        return pulled(partial(self.generate_into, request))

    async def generate_into(self, request: Request, sink: Sink[Event]) -> None:
        """Answer one request, delivering what comes of it."""
        try:
            if request.model != self._model_id:
                raise ModelNotFound(request.model)
            token_request, is_open = await self._prepare(request)
        except GanglionError as error:
            await give(sink, Failed(error))
            return
        splitter = PartSplitter(
            self._family if isinstance(request.prompt, ChatPrompt) else None,
            is_open=is_open,
            keep_markers=request.keep_markers,
            calls=self._calls(request.prompt),
            shows_special=request.shows_special,
        )

        def translate(events: Sequence[TokenEvent]) -> Room:
            parts: list[Event] = []
            for event in events:
                if isinstance(event, Started):
                    prompt = token_request.tokens if request.wants_token_ids else event.prompt_token_ids
                    event = replace(event, sampling=token_request.sampling, prompt_token_ids=prompt)  # noqa: PLW2901
                parts += _translate(event, splitter)
            return sink(parts) if parts else None

        await run_into(self._tokens, token_request, translate)

    def _calls(self, prompt: Prompt) -> CallRules | None:
        """Which calls the answer may make; None where it can make none."""
        if not isinstance(prompt, ChatPrompt):
            return None
        use = prompt.tool_use
        tools = callable_tools(use)
        return CallRules(self._tool_family, tools, _new_call_id, use.max_calls > 1) if tools else None

    @property
    def template(self) -> str:
        """The template that chats are rendered with."""
        return self._template

    async def read(self, request: Request) -> ReadPrompt:
        """The request's prompt rendered and tokenized, whatever its length."""
        if request.model != self._model_id:
            raise ModelNotFound(request.model)
        self._check_tokens(request)
        prompt = request.prompt
        if isinstance(prompt, ChatPrompt):
            text = await self._render(prompt, request.tenant)
            tokens, _ = await self._tokenize_around(text, request.tenant, most=None)
            return ReadPrompt(tokens, text.shown)
        tokens, _, _ = await self._tokenize(prompt, request.tenant, most=None)
        return ReadPrompt(tokens, prompt.text if isinstance(prompt, TextPrompt) else None)

    async def _prepare(self, request: Request) -> tuple[TokenRequest, bool]:
        """The token request, and whether its prompt leaves a reasoning block open."""
        self._check_tokens(request)
        # What is cut to fit may be of any length.
        most = self._context if request.truncate_prompt is None else None
        tokens, images, is_open = await self._tokenize(request.prompt, request.tenant, most=most)
        if not tokens:
            raise InvalidValue("The prompt is empty; give it at least one token.", param="prompt")
        kept, max_tokens = fitted(tokens, request, self._context)
        if len(kept) < len(tokens):
            tokens, images = cut_before(tokens, images, len(kept))
        prepared = TokenRequest(
            id=request.id,
            tokens=tokens,
            max_tokens=max_tokens,
            min_tokens=min(request.min_tokens, max_tokens),
            grammar=await self._grammar(request, is_open=is_open),
            score=request.score,
            sampling=resolve(request.sampling, self._facts.sampling),
            stop=request.stop,
            top_logprobs=request.top_logprobs,
            priority=request.priority,
            salt=salt_of(request.tenant, request.steering),
            readout=((len(tokens), None),) if request.wants_readout else (),
            steering=request.steering,
            wants_token_ids=request.wants_token_ids,
            images=images,
        )
        return prepared, is_open

    async def _grammar(self, request: Request, *, is_open: bool) -> str | None:
        """What the answer is held to; a prompt without a template has no reasoning before it."""
        prompt = request.prompt
        if not isinstance(prompt, ChatPrompt):
            return compose(request.constraint, body=None, family=None, is_open=False, may_reason=False)
        is_off = prompt.thinking.is_enabled is False or prompt.thinking.effort == "none"
        use = prompt.tool_use
        must_call = use.choice == "required" and bool(use.tools)
        return compose(
            None if must_call else request.constraint,
            body=await self._call_grammar(use, is_alternative=request.constraint is not None),
            family=self._family,
            is_open=is_open,
            may_reason=self._can_reason and not is_off,
        )

    async def _call_grammar(self, use: ToolUse, *, is_alternative: bool) -> str | None:
        """What calls are held to; with a format beside them, an answer that calls does nothing else."""
        if not callable_tools(use):
            return None
        if self._control_ids is None:
            self._control_ids = await control_ids(self._tokens, self._tool_family.markers)
        return tool_call_grammar(
            use, self._tool_family, is_call_only=is_alternative, control_ids=self._control_ids
        )

    async def _tokenize(
        self, prompt: Prompt, tenant: str, *, most: int | None
    ) -> tuple[tuple[int, ...], tuple[ImageBlock, ...], bool]:
        """The tokens, the images among them, and whether they leave a reasoning block open."""
        match prompt:
            case ChatPrompt():
                text = await self._render(prompt, tenant)
                tokens, images = await self._tokenize_around(text, tenant, most=most)
                return tokens, images, opens_reasoning(text.shown, self._family)
            case TextPrompt(text=text, suffix=suffix) if suffix is not None:
                return await self._fill_in(text, suffix, tenant, most=most), (), False
            case TextPrompt(text=text):
                tokens = await self._tokens.tokenize(
                    text,
                    add_special=prompt.adds_special,
                    parse_special=prompt.parses_special,
                    tenant=tenant,
                    most=most,
                )
                return tokens, (), False
            case TokenPrompt(tokens=tokens):
                return tokens, (), False
            case _:
                assert_never(prompt)

    async def _tokenize_around(
        self, text: SplitText, tenant: str, *, most: int | None
    ) -> tuple[tuple[int, ...], tuple[ImageBlock, ...]]:
        """The tokens of a rendered prompt, with placeholders where its images are."""
        # The template writes the special tokens itself, so they are read from the text and not added.
        pieces = [
            await self._tokens.tokenize(
                piece, add_special=False, parse_special=True, tenant=tenant, most=most
            )
            if piece
            else ()
            for piece in text.pieces
        ]
        images: list[ImageBlock] = []
        for attachment in text.attachments:
            assert self._place is not None
            try:
                images.append(await self._place(attachment.data, tenant))
            except InvalidValue as error:
                raise InvalidValue(
                    error.message, param=attachment.path or "messages", hint=error.hint
                ) from error
        return with_images(pieces, images)

    async def _render(self, prompt: ChatPrompt, tenant: str) -> SplitText:
        self._check_attachments(prompt)
        plain = marked(prompt)
        text = None
        if not (self._is_typed and plain.marks):
            try:
                text = await self._fill(plain.prompt, tenant)
            except InvalidValue:
                if not plain.marks:
                    raise
        if text is None or not has_all(text, plain):
            # Templates that read contents as lists of parts show nothing of a plain one, or refuse it.
            typed = await self._fill(plain.prompt, tenant, is_typed=True)
            self._is_typed = self._is_typed or has_all(typed, plain)
            text = typed if has_all(typed, plain) or text is None else text
        return split(text, plain)

    async def _fill(self, prompt: ChatPrompt, tenant: str, *, is_typed: bool = False) -> str:
        facts = self._facts
        return await self._renderer.render(
            self._template,
            prompt,
            bos_token=facts.bos_token,
            eos_token=facts.eos_token,
            tenant=tenant,
            is_typed=is_typed,
        )

    def _check_attachments(self, prompt: ChatPrompt) -> None:
        """Raise for what the model cannot take, before anything of it is read."""
        attachments = attachments_of(prompt)
        if not attachments:
            return
        check_attachments(prompt, self._model_id, self._senses)
        for each in attachments:
            if (each.kind == "audio") != is_wave(each.data):
                raise InvalidValue(
                    "A sound must be WAV, and an image none.",
                    param=each.path or "messages",
                    hint="Send sounds as WAV with PCM samples, images as PNG, JPEG, WebP, GIF or BMP.",
                )

    async def _fill_in(self, text: str, suffix: str, tenant: str, *, most: int | None) -> tuple[int, ...]:
        """The prompt for the text between two others, in the vocabulary's own special tokens."""
        special = self._special_tokens()
        opening, closing, middle = special.fill_prefix, special.fill_suffix, special.fill_middle
        if opening is None or closing is None or middle is None:
            raise UnsupportedParameter(
                f"The model {self._model_id!r} cannot fill in text: its vocabulary has no tokens for it.",
                param="suffix",
                hint="Leave 'suffix' out.",
            )
        before, after = [
            await self._tokens.tokenize(
                part, add_special=False, parse_special=False, tenant=tenant, most=most
            )
            for part in (text, suffix)
        ]
        return (*special.opening, opening, *before, closing, *after, middle)

    def _check_tokens(self, request: Request) -> None:
        """Every token id a client names must exist."""
        size, sampling = self._facts.vocabulary_size, request.sampling
        check_tokens((token for token, _ in sampling.logit_bias), size, "logit_bias")
        check_tokens(request.stop.token_ids, size, "stop_token_ids")
        check_tokens(sampling.samplers.allowed_token_ids or (), size, "allowed_token_ids")
        if isinstance(request.prompt, TokenPrompt):
            check_tokens(request.prompt.tokens, size, "prompt")


def _new_call_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"


def _translate(event: TokenEvent, splitter: PartSplitter) -> Sequence[Event]:
    match event:
        case Pieces(pieces=pieces):
            return splitter.feed(pieces)
        case Started() | Progress() | Scored() | Failed():
            return (event,)
        case Finished():
            closing = splitter.finish(is_cut=event.reason == "length")
            usage = replace(event.usage, reasoning_tokens=splitter.reasoning_tokens)
            is_call = event.reason == "stop" and splitter.has_calls
            return [*closing, replace(event, usage=usage, reason="tool_calls" if is_call else event.reason)]
        case _:
            assert_never(event)
