"""Chat over tokens: template and tokenizer in front of a token engine, parts behind it."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Final, assert_never

from ganglion.core.engine import TokenEngine
from ganglion.core.errors import ContextLengthExceeded, GanglionError, InvalidValue, ModelNotFound
from ganglion.core.events import Event, Failed, Finished, Pieces, Progress, Scored, Started, TokenEvent
from ganglion.core.model import ModelFacts
from ganglion.core.request import ChatPrompt, Prompt, Request, TextPrompt, TokenPrompt, TokenRequest, resolve
from ganglion.engines.rendering import Renderer
from ganglion.text.constraint import compose
from ganglion.text.generic import GENERIC_TEMPLATE
from ganglion.text.markers import MarkerFamily, family_of, opens_reasoning
from ganglion.text.parts import PartSplitter

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
    ) -> None:
        self._model_id = model_id
        self._tokens = tokens
        self._renderer = renderer
        self._facts = facts
        self._context = context
        self._template = chat_template or facts.chat_template or GENERIC_TEMPLATE
        self._family: MarkerFamily = family_of(self._template)
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
        )
        async with aclosing(self._tokens.run(token_request)) as events:
            async for event in events:
                for out in _translate(event, splitter):
                    yield out

    async def _prepare(self, request: Request) -> tuple[TokenRequest, bool]:
        """The token request, and whether its prompt leaves a reasoning block open."""
        self._check_tokens(request)
        tokens, is_open = await self._tokenize(request.prompt)
        if not tokens:
            raise InvalidValue("The prompt is empty; give it at least one token.", param="prompt")
        room = self._context - len(tokens)
        if room < 1:
            raise ContextLengthExceeded(len(tokens), self._context)
        max_tokens = min(request.max_tokens or DEFAULT_MAX_TOKENS, room)
        prepared = TokenRequest(
            id=request.id,
            tokens=tokens,
            max_tokens=max_tokens,
            min_tokens=min(request.min_tokens, max_tokens),
            grammar=self._grammar(request, is_open=is_open),
            sampling=resolve(request.sampling, self._facts.sampling),
            stop=request.stop,
            top_logprobs=request.top_logprobs,
            priority=request.priority,
            salt=request.tenant,
        )
        return prepared, is_open

    def _grammar(self, request: Request, *, is_open: bool) -> str | None:
        """What the answer is held to; a prompt without a template has no reasoning before it."""
        prompt = request.prompt
        if not isinstance(prompt, ChatPrompt):
            return compose(request.constraint, body=None, family=None, is_open=False, may_reason=False)
        is_off = prompt.thinking.is_enabled is False or prompt.thinking.effort == "none"
        return compose(
            request.constraint,
            body=None,
            family=self._family,
            is_open=is_open,
            may_reason=self._can_reason and not is_off,
        )

    async def _tokenize(self, prompt: Prompt) -> tuple[tuple[int, ...], bool]:
        match prompt:
            case ChatPrompt():
                text = await self._renderer.render(
                    self._template,
                    prompt,
                    bos_token=self._facts.bos_token,
                    eos_token=self._facts.eos_token,
                )
                # The template writes the special tokens itself, so they are read from the text and not added.
                tokens = await self._tokens.tokenize(text, add_special=False, parse_special=True)
                return tokens, opens_reasoning(text, self._family)
            case TextPrompt(text=text):
                return await self._tokens.tokenize(text, add_special=True, parse_special=True), False
            case TokenPrompt(tokens=tokens):
                return tokens, False
            case _:
                assert_never(prompt)

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


def _translate(event: TokenEvent, splitter: PartSplitter) -> list[Event]:
    match event:
        case Progress() | Started() | Scored():
            return [event]
        case Pieces(pieces=pieces):
            return list(splitter.feed(pieces))
        case Finished():
            closing = splitter.finish()
            usage = replace(event.usage, reasoning_tokens=splitter.reasoning_tokens)
            return [*closing, replace(event, usage=usage)]
        case Failed():
            return [event]
        case _:
            assert_never(event)
