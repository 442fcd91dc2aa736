"""The capabilities of a model, as far as its own description shows them."""

import re
from typing import Final

from ganglion.text.markers import FAMILIES

# Encoders: they read a text whole and answer with vectors, never with a next token.
_ENCODERS: Final = frozenset(
    {
        "bert",
        "distilbert",
        "eurobert",
        "gemma-embedding",
        "jina-bert-v2",
        "jina-bert-v3",
        "modern-bert",
        "modernbert",
        "mpnet",
        "neo-bert",
        "new",
        "nomic-bert",
        "nomic-bert-moe",
        "nomic_bert",
        "roberta",
        "t5encoder",
        "xlm-roberta",
    }
)
_TOOLS: Final = re.compile(r"\b(tools|tool_calls)\b")
_REASONING: Final = (*(sign for family in FAMILIES for sign in family.signs), "enable_thinking")


def is_encoder(architecture: str) -> bool:
    """Whether models of this architecture only embed."""
    return architecture in _ENCODERS


def capabilities(
    *, chat_template: str | None, is_causal: bool, is_embedding: bool, has_vision: bool
) -> tuple[str, ...]:
    """The flags in the order people read them.

    Embedding models that grew out of chat models keep a template, and answering a chat is not what they are
    for: they get no flag that rests on it.
    """
    template = chat_template if is_causal and not is_embedding else None
    claims = {
        "chat": bool(template),
        "tools": bool(template and _TOOLS.search(template)),
        "vision": has_vision,
        "embeddings": is_embedding,
        "reasoning": bool(template and any(sign in template for sign in _REASONING)),
        "completion": is_causal,
    }
    return tuple(flag for flag, is_claimed in claims.items() if is_claimed)
