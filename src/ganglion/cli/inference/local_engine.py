"""The engine of a command that runs a model itself."""

from typing import TYPE_CHECKING

from ganglion.cli.flags import EngineFlags, OutputFlags, load_config
from ganglion.cli.terminal.logs import set_up_logging
from ganglion.cli.terminal.progress import download_bar

if TYPE_CHECKING:
    from ganglion.registry.loading.residency import Residency


def local_engine(flags: EngineFlags, output: OutputFlags, model: str | None) -> "Residency":
    """The engine with the named model, or else with the first of the configuration; not open yet."""
    from ganglion.cli.compose import compose

    config = load_config(output, flags.settings())
    set_up_logging(output.log_level or "warning", config.log.format)
    return compose(config, [model] if model else config.models[:1], [], bar=download_bar).engine
