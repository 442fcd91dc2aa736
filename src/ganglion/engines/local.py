"""Chat over tokens: template and tokenizer in front of a token engine, parts behind it."""

import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Final, assert_never

from ganglion.core.engine import ReadPrompt, TokenEngine
from ganglion.core.errors import (
    ContextLengthExceeded,
    GanglionError,
    InvalidValue,
    ModelNotFound,
    UnsupportedParameter,
)
from ganglion.core.events import Event, Failed, Finished, Pieces, Progress, Scored, Started, TokenEvent
from ganglion.core.model import ModelFacts
from ganglion.core.request import (
    ChatPrompt,
    Prompt,
    Request,
    TextPrompt,
    TokenPrompt,
    TokenRequest,
    ToolUse,
    resolve,
    salt_of,
)
from ganglion.engines.ipc import Signs
from ganglion.engines.rendering import Renderer
from ganglion.engines.tool_markers import control_ids
from ganglion.text.constraint import compose
from ganglion.text.generic import GENERIC_TEMPLATE
from ganglion.text.markers import MarkerFamily, family_of, opens_reasoning
from ganglion.text.parts import CallRules, PartSplitter
from ganglion.text.tools.families import ToolFamily, callable_tools
from ganglion.text.tools.families import family_of as tool_family_of
from ganglion.text.tools.forced import forced

DEFAULT_MAX_TOKENS: Final = 2048


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
        signs: Callable[[], Signs] = Signs,
    ) -> None:
        """`signs` tells the vocabulary's own, once the model is loaded."""
        self._signs = signs
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

    async def generate(self, request: Request) -> AsyncGenerator[Event, None]:
        """Answer one request."""
        if request.model != self._model_id:
            yield Failed(ModelNotFound(request.model))
            return
        try:
            token_request, is_open = await self._prepare(request)
        except GanglionError as error:
            yield Failed(error)
            return
        splitter = PartSplitter(
            self._family if isinstance(request.prompt, ChatPrompt) else None,
            is_open=is_open,
            keep_markers=request.keep_markers,
            calls=self._calls(request.prompt),
        )
        async with aclosing(self._tokens.run(token_request)) as events:
            async for event in events:
                for out in _translate(event, splitter):
                    yield out

    def _calls(self, prompt: Prompt) -> CallRules | None:
        """Which calls the answer may make; None where it can make none."""
        if not isinstance(prompt, ChatPrompt):
            return None
        use = prompt.tool_use
        tools = callable_tools(use)
        return CallRules(self._tool_family, tools, _new_call_id, use.is_parallel) if tools else None

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
            text = await self._render(prompt)
            tokens = await self._tokens.tokenize(text, add_special=False, parse_special=True)
            return ReadPrompt(tokens, text)
        tokens, _ = await self._tokenize(prompt)
        return ReadPrompt(tokens, prompt.text if isinstance(prompt, TextPrompt) else None)

    async def _prepare(self, request: Request) -> tuple[TokenRequest, bool]:
        """The token request, and whether its prompt leaves a reasoning block open."""
        self._check_tokens(request)
        tokens, is_open = await self._tokenize(request.prompt)
        if not tokens:
            raise InvalidValue("The prompt is empty; give it at least one token.", param="prompt")
        room = self._context - len(tokens)
        asked = DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens
        if room < min(asked, 1):
            raise ContextLengthExceeded(len(tokens), self._context)
        max_tokens = min(asked, room)
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
        asked = replace(use, choice="required") if is_alternative else use
        return forced(asked, self._tool_family, control_ids=self._control_ids)

    async def _tokenize(self, prompt: Prompt) -> tuple[tuple[int, ...], bool]:
        match prompt:
            case ChatPrompt():
                text = await self._render(prompt)
                # The template writes the special tokens itself, so they are read from the text and not added.
                tokens = await self._tokens.tokenize(text, add_special=False, parse_special=True)
                return tokens, opens_reasoning(text, self._family)
            case TextPrompt(text=text, suffix=suffix) if suffix is not None:
                return await self._fill_in(text, suffix), False
            case TextPrompt(text=text):
                tokens = await self._tokens.tokenize(
                    text, add_special=prompt.adds_special, parse_special=prompt.parses_special
                )
                return tokens, False
            case TokenPrompt(tokens=tokens):
                return tokens, False
            case _:
                assert_never(prompt)

    async def _render(self, prompt: ChatPrompt) -> str:
        return await self._renderer.render(
            self._template, prompt, bos_token=self._facts.bos_token, eos_token=self._facts.eos_token
        )

    async def _fill_in(self, text: str, suffix: str) -> tuple[int, ...]:
        """What asks for the text between two others, in the vocabulary's own signs."""
        signs = self._signs()
        opening, closing, middle = signs.fill_prefix, signs.fill_suffix, signs.fill_middle
        if opening is None or closing is None or middle is None:
            raise UnsupportedParameter(
                f"The model {self._model_id!r} cannot fill in text: its vocabulary has no signs for it.",
                param="suffix",
                hint="Leave 'suffix' out.",
            )
        before, after = [
            await self._tokens.tokenize(part, add_special=False, parse_special=False)
            for part in (text, suffix)
        ]
        bos = (signs.bos,) if signs.adds_bos and signs.bos is not None else ()
        return (*bos, opening, *before, closing, *after, middle)

    def _check_tokens(self, request: Request) -> None:
        """Every token id a client names must exist."""
        size = self._facts.vocabulary_size
        named = {
            "logit_bias": (token for token, _ in request.sampling.logit_bias),
            "stop_token_ids": iter(request.stop.token_ids),
            "prompt": iter(request.prompt.tokens if isinstance(request.prompt, TokenPrompt) else ()),
        }
        for param, tokens in named.items():
            for token in tokens:
                if not 0 <= token < size:
                    raise InvalidValue(
                        f"Token {token} is not in the vocabulary of {size} tokens.", param=param
                    )


def _new_call_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"


def _translate(event: TokenEvent, splitter: PartSplitter) -> list[Event]:
    match event:
        case Progress() | Started() | Scored():
            return [event]
        case Pieces(pieces=pieces):
            return list(splitter.feed(pieces))
        case Finished():
            closing = splitter.finish()
            usage = replace(event.usage, reasoning_tokens=splitter.reasoning_tokens)
            is_call = event.reason == "stop" and splitter.has_calls
            return [*closing, replace(event, usage=usage, reason="tool_calls" if is_call else event.reason)]
        case Failed():
            return [event]
        case _:
            assert_never(event)
