"""What a prompt is for a node's model: how it reads it, without answering it."""

from typing import Final
from urllib.parse import quote

from ganglion.core.engine import ReadPrompt, TokenizerInfo
from ganglion.core.request import ChatPrompt, Request, TokenPrompt
from ganglion.gateway.node import NodeSpec
from ganglion.gateway.outbound import Answer, Outbound
from ganglion.gateway.refused import LACKS_ROUTE, refused, unsupported
from ganglion.gateway.signing import trusted_headers
from ganglion.wire import prompting
from ganglion.wire.chat.asking import asking

CALL_S: Final = 60.0


class Prompts:
    """Asks nodes about prompts; raises GanglionErrors."""

    def __init__(self, outbound: Outbound) -> None:
        self._outbound = outbound

    async def read(self, spec: NodeSpec, model: str, request: Request) -> ReadPrompt:
        """The prompt rendered and tokenized by the server that would answer it."""
        prompt, is_ours = request.prompt, spec.kind == "ganglion"
        if isinstance(prompt, TokenPrompt):
            return ReadPrompt(prompt.tokens)
        if isinstance(prompt, ChatPrompt):
            chat = asking(request, model, is_ours=is_ours)
            return await (self._our_chat if is_ours else self._foreign_chat)(spec, model, request, chat)
        body = prompting.tokenize_text(model, prompt.text, adds_special=prompt.adds_special, is_ours=is_ours)
        answer = await self._post(spec, "/tokenize", body, request.tenant)
        return ReadPrompt(prompting.tokens_of(_good(answer, model)), prompt.text)

    async def detokenize(self, spec: NodeSpec, model: str, tokens: tuple[int, ...], tenant: str) -> str:
        """Ids to text."""
        answer = await self._post(spec, "/detokenize", prompting.detokenize(model, tokens), tenant)
        return prompting.text_of(_good(answer, model))

    async def info(self, spec: NodeSpec, model: str) -> TokenizerInfo:
        """The tokenizer of one of our nodes' models."""
        if spec.kind != "ganglion":
            raise unsupported(model)
        path = f"/tokenizer_info?model={quote(model, safe='')}"
        headers = trusted_headers(spec, tenant="")
        answer = await self._outbound.call(spec, "GET", path, headers=headers, timeout_s=CALL_S)
        return prompting.info_of(_good(answer, model))

    async def _our_chat(self, spec: NodeSpec, model: str, request: Request, chat: bytes) -> ReadPrompt:
        counted = await self._post(spec, "/tokenize", chat, request.tenant)
        tokens = prompting.tokens_of(_good(counted, model))
        shown = await self._post(spec, "/apply_template", chat, request.tenant)
        return ReadPrompt(tokens, prompting.text_of(_good(shown, model)))

    async def _foreign_chat(self, spec: NodeSpec, model: str, request: Request, chat: bytes) -> ReadPrompt:
        """llama-server's way, then vLLM's; an estimate would be worse than no answer."""
        shown = await self._post(spec, "/apply-template", chat)
        if shown.status not in LACKS_ROUTE:
            text = prompting.text_of(_good(shown, model))
            counted = await self._post(spec, "/tokenize", prompting.tokenize_content(text))
            return ReadPrompt(prompting.tokens_of(_good(counted, model)), text)
        counted = await self._post(spec, "/tokenize", chat)
        return ReadPrompt(prompting.tokens_of(_good(counted, model)))

    async def _post(self, spec: NodeSpec, path: str, body: bytes, tenant: str = "") -> Answer:
        headers = trusted_headers(spec, tenant=tenant)
        return await self._outbound.call(spec, "POST", path, headers=headers, body=body, timeout_s=CALL_S)


def _good(answer: Answer, model: str) -> bytes:
    if answer.status != 200:
        raise refused(answer, model)
    return answer.body
