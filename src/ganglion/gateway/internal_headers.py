"""The headers between a gateway and its nodes; from anybody else they are stripped."""

from typing import Final

TENANT: Final = b"x-ganglion-tenant"
KEY: Final = b"x-ganglion-key"
PRIORITY: Final = b"x-ganglion-priority"
EPOCH: Final = b"x-ganglion-epoch"
"""Of the lease under which the gateway sends work; a node whose lease is another one refuses."""
AFFINITY: Final = b"x-ganglion-affinity"
"""Names the conversation; the node tells it back in its digest."""
USAGE: Final = b"x-ganglion-usage"
"""With the value 1 a stream's last event is a comment of this name, a space and the usage as JSON."""
PLACE: Final = b"x-ganglion-place"
"""Names the place that the front of a gateway reserved for a request, to the desk of the same process."""
REQUEST_ID: Final = b"x-request-id"
PREFIX: Final = b"x-ganglion-"
