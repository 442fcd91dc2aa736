"""A picture of how well a concept separates, layer by layer."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ganglion.cli.concepts_eval import JudgedLayer

SUFFIXES: Final = (".png", ".svg", ".pdf")


def check_plot(path: Path) -> None:
    """Raise what would keep a plot from being drawn, before anything long is begun."""
    from ganglion.core.errors import InvalidValue, UnsupportedParameter

    if path.suffix not in SUFFIXES:
        raise InvalidValue(
            f"--plot names {path}; expected a file that ends in {', '.join(SUFFIXES)}.", param="plot"
        )
    if find_spec("matplotlib") is None:
        raise UnsupportedParameter(
            "The package matplotlib, with which plots are drawn, is not installed.",
            param="plot",
            hint="pip install 'ganglion[plots]'",
        )


def draw(path: Path, title: str, layers: "Sequence[JudgedLayer]") -> None:
    """Draw AUC by layer; raises InvalidValue where the file cannot be written."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from ganglion.core.errors import InvalidValue

    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    FigureCanvasAgg(figure)  # no window, wherever this runs
    axes = figure.add_subplot()
    numbers = [each.layer for each in layers]
    axes.axhline(0.5, color="grey", linewidth=0.8, linestyle=":", label="chance")
    axes.plot(numbers, [each.auc for each in layers], marker="o", label="these examples")
    known = [(each.layer, each.auc_in_training) for each in layers if each.auc_in_training is not None]
    if known:
        axes.plot(*zip(*known, strict=True), marker="x", linestyle="--", label="held out in training")
    axes.set(title=title, xlabel="layer", ylabel="AUC", xticks=numbers, ylim=(0.0, 1.05))
    axes.legend(loc="lower right")
    try:
        figure.savefig(path)
    except OSError as error:
        raise InvalidValue(f"{path} cannot be written: {error.strerror}.", param="plot") from error
