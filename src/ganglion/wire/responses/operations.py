"""The operations of Responses and of conversations, as the OpenAPI document has them."""

from ganglion.wire.operation import (
    JSON,
    Json,
    Operation,
    content,
    delete,
    get,
    optional,
    post,
    streamed_answer,
)
from ganglion.wire.responses.response_object import ResponseObject
from ganglion.wire.responses.schema import (
    CompactBody,
    ConversationBody,
    ConversationUpdateBody,
    ItemsBody,
    ResponsesBody,
)
from ganglion.wire.responses.stored import (
    CompactedResponse,
    ConversationObject,
    DeletedConversation,
    DeletedResponse,
    InputTokens,
    ItemList,
)

_RESPONSES_ANSWER = streamed_answer(
    "The response; with `stream` true, server-sent events, each named by its type.", ResponseObject
)
_STREAM: Json = optional(
    "stream",
    "true streams the events of a response that runs or ran in the background.",
    {"type": "string", "enum": ["true", "false"]},
)
_STARTING_AFTER: Json = optional(
    "starting_after",
    "The sequence number of the last event that was heard.",
    {"type": "integer", "minimum": 0, "maximum": 2**53},
)
_PAGE_SCHEMAS: dict[str, Json] = {
    "limit": {"type": "integer", "minimum": 1, "maximum": 100},
    "order": {"type": "string", "enum": ["asc", "desc"]},
    "after": {"type": "string"},
}
_PAGE: tuple[Json, ...] = tuple(
    {"name": name, "in": "query", "required": False, "schema": schema}
    for name, schema in _PAGE_SCHEMAS.items()
)

OPERATIONS: tuple[Operation, ...] = (
    post(
        "/v1/responses",
        "Answer a conversation of items, whole or as a stream.",
        _RESPONSES_ANSWER,
        body=ResponsesBody,
    ),
    post(
        "/v1/responses/input_tokens",
        "Count the tokens of a call without answering it.",
        "The count.",
        InputTokens,
        body=ResponsesBody,
    ),
    post(
        "/v1/responses/compact",
        "Make a long conversation short.",
        "The conversation to go on with.",
        CompactedResponse,
        body=CompactBody,
    ),
    get(
        "/v1/responses/{id}",
        "Read a kept response, or the rest of its stream.",
        _RESPONSES_ANSWER,
        parameters=(_STREAM, _STARTING_AFTER),
    ),
    delete("/v1/responses/{id}", "Delete a kept response.", "It is gone.", DeletedResponse),
    post(
        "/v1/responses/{id}/cancel",
        "Cancel a response that runs in the background.",
        "The response as it was when it was cancelled.",
        ResponseObject,
    ),
    get(
        "/v1/responses/{id}/input_items",
        "List what a response was sent.",
        "A page of items.",
        ItemList,
        parameters=_PAGE,
    ),
    post(
        "/v1/conversations",
        "Begin a conversation.",
        "The conversation.",
        ConversationObject,
        body=ConversationBody,
    ),
    get("/v1/conversations/{id}", "Describe a conversation.", "The conversation.", ConversationObject),
    post(
        "/v1/conversations/{id}",
        "Give a conversation other metadata.",
        "The conversation.",
        ConversationObject,
        body=ConversationUpdateBody,
    ),
    delete("/v1/conversations/{id}", "Delete a conversation.", "It is gone.", DeletedConversation),
    get(
        "/v1/conversations/{id}/items",
        "List what a conversation holds.",
        "A page of items.",
        ItemList,
        parameters=_PAGE,
    ),
    post(
        "/v1/conversations/{id}/items",
        "Add items to a conversation.",
        "The items as they are kept.",
        ItemList,
        body=ItemsBody,
    ),
    get(
        "/v1/conversations/{id}/items/{item}",
        "Read one item.",
        content("The item.", JSON, {"type": "object"}),
    ),
    delete(
        "/v1/conversations/{id}/items/{item}",
        "Take one item out of a conversation.",
        "The conversation.",
        ConversationObject,
    ),
)
