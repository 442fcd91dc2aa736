"""The routes for vectors, scores, readouts and tokens."""

from ganglion.wire.chat.schema import ChatBody
from ganglion.wire.embeddings import EmbeddingList, EmbeddingsBody
from ganglion.wire.operation import Json, Operation, get, optional, post
from ganglion.wire.readout import ReadoutCard
from ganglion.wire.rerank import RerankBody, Reranked
from ganglion.wire.responses.stored import InputTokens
from ganglion.wire.score import ScoreBody, Scores
from ganglion.wire.tokenizer import (
    DetokenizeAnswer,
    DetokenizeBody,
    TemplateAnswer,
    TemplateBody,
    TokenizeAnswer,
    TokenizeBody,
    TokenizerCard,
)

_NAMED: Json = optional("model", "A model; may be left out where one is here.", {"type": "string"})

PROMPT_OPERATIONS: tuple[Operation, ...] = (
    post(
        "/v1/chat/completions/input_tokens",
        "Count the tokens of a conversation without answering it.",
        "How many there are.",
        InputTokens,
        body=ChatBody,
    ),
    post(
        "/v1/embeddings", "Make a vector of each input.", "The vectors.", EmbeddingList, body=EmbeddingsBody
    ),
    post(
        "/v1/rerank",
        "Order documents by how well they answer a query.",
        "The documents, best first.",
        Reranked,
        body=RerankBody,
    ),
    post(
        "/v1/score",
        "Say how likely the tokens of a prompt are.",
        "The logprobs of each range.",
        Scores,
        body=ScoreBody,
    ),
    get(
        "/v1/readout/manifest",
        "Say which concepts are read out of a model, and after which layers.",
        "The concepts and layers, in the order of the values.",
        ReadoutCard,
        parameters=(_NAMED,),
    ),
    post("/tokenize", "Turn a text or a chat into tokens.", "The tokens.", TokenizeAnswer, body=TokenizeBody),
    post("/detokenize", "Turn tokens into text.", "The text.", DetokenizeAnswer, body=DetokenizeBody),
    post(
        "/apply_template",
        "Show a chat as the model reads it.",
        "The prompt.",
        TemplateAnswer,
        body=TemplateBody,
    ),
    get(
        "/tokenizer_info",
        "Describe a model's tokenizer.",
        "The tokenizer.",
        TokenizerCard,
        parameters=(_NAMED,),
    ),
)
