"""The service `salience.v1.Salience`, as its descriptor names it."""

from typing import Final

from google.protobuf.descriptor import ServiceDescriptor

from ganglion.wire.salience import salience_pb2 as pb

SERVICE: Final[ServiceDescriptor] = pb.DESCRIPTOR.services_by_name["Salience"]


def method_path(method: str) -> str:
    """A method's path as gRPC sends it."""
    return f"/{SERVICE.full_name}/{method}"
