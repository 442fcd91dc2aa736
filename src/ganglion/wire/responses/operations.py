"""The operations of Responses and of conversations, as the OpenAPI document has them."""

from ganglion.wire.operation import JSON, Json, Operation, Shapes, content, json_answer, optional, ref
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

_RESPONSES_ANSWER: Json = {
    "description": "The response; with `stream` true, server-sent events, each named by its type.",
    "content": {JSON: {"schema": ref("ResponseObject")}, "text/event-stream": {}},
}
_ID: Json = {"name": "id", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
_ITEM: Json = _ID | {"name": "item"}
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
_PAGE: tuple[Json, ...] = (
    {
        "name": "limit",
        "in": "query",
        "required": False,
        "schema": {"type": "integer", "minimum": 1, "maximum": 100},
    },
    {
        "name": "order",
        "in": "query",
        "required": False,
        "schema": {"type": "string", "enum": ["asc", "desc"]},
    },
    {"name": "after", "in": "query", "required": False, "schema": {"type": "string"}},
)

SHAPES: Shapes = (
    ResponsesBody,
    ResponseObject,
    InputTokens,
    CompactBody,
    CompactedResponse,
    DeletedResponse,
    ItemList,
    ConversationObject,
    ConversationBody,
    ConversationUpdateBody,
    DeletedConversation,
    ItemsBody,
)

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "post",
        "/v1/responses",
        "Answer a conversation of items, whole or as a stream.",
        {"200": _RESPONSES_ANSWER},
        body="ResponsesBody",
    ),
    Operation(
        "post",
        "/v1/responses/input_tokens",
        "Count the tokens of a call without answering it.",
        {"200": json_answer("The count.", InputTokens)},
        body="ResponsesBody",
    ),
    Operation(
        "post",
        "/v1/responses/compact",
        "Make a long conversation short.",
        {"200": json_answer("The conversation to go on with.", CompactedResponse)},
        body="CompactBody",
    ),
    Operation(
        "get",
        "/v1/responses/{id}",
        "Read a kept response, or the rest of its stream.",
        {"200": _RESPONSES_ANSWER},
        parameters=(_ID, _STREAM, _STARTING_AFTER),
    ),
    Operation(
        "delete",
        "/v1/responses/{id}",
        "Delete a kept response.",
        {"200": json_answer("It is gone.", DeletedResponse)},
        parameters=(_ID,),
    ),
    Operation(
        "post",
        "/v1/responses/{id}/cancel",
        "Cancel a response that runs in the background.",
        {"200": json_answer("The response as it was when it was cancelled.", ResponseObject)},
        parameters=(_ID,),
    ),
    Operation(
        "get",
        "/v1/responses/{id}/input_items",
        "List what a response was sent.",
        {"200": json_answer("A page of items.", ItemList)},
        parameters=(_ID, *_PAGE),
    ),
    Operation(
        "post",
        "/v1/conversations",
        "Begin a conversation.",
        {"200": json_answer("The conversation.", ConversationObject)},
        body="ConversationBody",
    ),
    Operation(
        "get",
        "/v1/conversations/{id}",
        "Describe a conversation.",
        {"200": json_answer("The conversation.", ConversationObject)},
        parameters=(_ID,),
    ),
    Operation(
        "post",
        "/v1/conversations/{id}",
        "Give a conversation other metadata.",
        {"200": json_answer("The conversation.", ConversationObject)},
        body="ConversationUpdateBody",
        parameters=(_ID,),
    ),
    Operation(
        "delete",
        "/v1/conversations/{id}",
        "Delete a conversation.",
        {"200": json_answer("It is gone.", DeletedConversation)},
        parameters=(_ID,),
    ),
    Operation(
        "get",
        "/v1/conversations/{id}/items",
        "List what a conversation holds.",
        {"200": json_answer("A page of items.", ItemList)},
        parameters=(_ID, *_PAGE),
    ),
    Operation(
        "post",
        "/v1/conversations/{id}/items",
        "Add items to a conversation.",
        {"200": json_answer("The items as they are kept.", ItemList)},
        body="ItemsBody",
        parameters=(_ID,),
    ),
    Operation(
        "get",
        "/v1/conversations/{id}/items/{item}",
        "Read one item.",
        {"200": content("The item.", JSON, {"type": "object"})},
        parameters=(_ID, _ITEM),
    ),
    Operation(
        "delete",
        "/v1/conversations/{id}/items/{item}",
        "Take one item out of a conversation.",
        {"200": json_answer("The conversation.", ConversationObject)},
        parameters=(_ID, _ITEM),
    ),
)
