"""The OpenAPI document of a server: its routes and their schemas, taken from every dialect."""

from ganglion.wire.openapi.document import GATEWAY, NODE, OPERATIONS, Surface, document, encode
from ganglion.wire.operation import Json, Operation

__all__ = ["GATEWAY", "NODE", "OPERATIONS", "Json", "Operation", "Surface", "document", "encode"]
