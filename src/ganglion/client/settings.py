"""What a client is told when it is made, and what it takes from the environment."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ganglion.client.address import DEFAULT_URL, Address, address_of
from ganglion.client.lines import Terms

TIMEOUT_S: Final = 60.0
IDLE_TIMEOUT_S: Final = 300.0
"""A node that reads a long prompt says so; one that is silent for longer is gone."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Where, on which terms, trusting whom."""

    address: Address
    terms: Terms
    ca_file: str | Path | None = None


def settings_of(
    *,
    base_url: str | None,
    api_key: str | None,
    grpc_address: str | None,
    timeout_s: float,
    idle_timeout_s: float,
    ca_file: str | Path | None,
) -> Settings:
    """Fill what was left out from GANGLION_URL, GANGLION_GRPC_ADDRESS and GANGLION_API_KEY."""
    url = base_url or os.environ.get("GANGLION_URL") or DEFAULT_URL
    # An address of the environment belongs to the URL of the environment, not to one that was given.
    grpc_address = grpc_address or (None if base_url else os.environ.get("GANGLION_GRPC_ADDRESS"))
    key = api_key or os.environ.get("GANGLION_API_KEY") or None
    return Settings(address_of(url, grpc_address), Terms(timeout_s, idle_timeout_s, key), ca_file)
