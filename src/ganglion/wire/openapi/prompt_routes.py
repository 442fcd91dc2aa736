"""The routes for vectors, scores, readouts and tokens."""

from ganglion.wire.embeddings import EmbeddingList, EmbeddingsBody
from ganglion.wire.operation import Json, Operation, Shapes, json_answer, optional
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

SHAPES: Shapes = (
    EmbeddingsBody,
    EmbeddingList,
    RerankBody,
    Reranked,
    ScoreBody,
    Scores,
    ReadoutCard,
    TokenizeBody,
    TokenizeAnswer,
    DetokenizeBody,
    DetokenizeAnswer,
    TemplateBody,
    TemplateAnswer,
    TokenizerCard,
    InputTokens,
)

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "post",
        "/v1/chat/completions/input_tokens",
        "Count the tokens of a conversation without answering it.",
        {"200": json_answer("How many there are.", InputTokens)},
        body="ChatBody",
    ),
    Operation(
        "post",
        "/v1/embeddings",
        "Make a vector of each input.",
        {"200": json_answer("The vectors.", EmbeddingList)},
        body="EmbeddingsBody",
    ),
    Operation(
        "post",
        "/v1/rerank",
        "Order documents by how well they answer a query.",
        {"200": json_answer("The documents, best first.", Reranked)},
        body="RerankBody",
    ),
    Operation(
        "post",
        "/v1/score",
        "Say how likely the tokens of a prompt are.",
        {"200": json_answer("The logprobs of each range.", Scores)},
        body="ScoreBody",
    ),
    Operation(
        "get",
        "/v1/readout/manifest",
        "Say which concepts are read out of a model, and after which layers.",
        {"200": json_answer("The concepts and layers, in the order of the values.", ReadoutCard)},
        parameters=(_NAMED,),
    ),
    Operation(
        "post",
        "/tokenize",
        "Turn a text or a chat into tokens.",
        {"200": json_answer("The tokens.", TokenizeAnswer)},
        body="TokenizeBody",
    ),
    Operation(
        "post",
        "/detokenize",
        "Turn tokens into text.",
        {"200": json_answer("The text.", DetokenizeAnswer)},
        body="DetokenizeBody",
    ),
    Operation(
        "post",
        "/apply_template",
        "Show a chat as the model reads it.",
        {"200": json_answer("The prompt.", TemplateAnswer)},
        body="TemplateBody",
    ),
    Operation(
        "get",
        "/tokenizer_info",
        "Describe a model's tokenizer.",
        {"200": json_answer("The tokenizer.", TokenizerCard)},
        parameters=(_NAMED,),
    ),
)
