# SPDX-License-Identifier: GPL-2.0-or-later
"""The benches' pictures, as PNG in build/bench (matplotlib, no display).

matplotlib is imported with the first picture: in a guest, where none is drawn, that takes longer
than some measurements.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from bench.report import FOLDER
from bench.stats import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["bars", "curves", "heat", "panels"]


COLOURS = 10  # that matplotlib has before it begins again


@contextmanager
def _pictures(name: str, width: float, count: int) -> Iterator[Sequence[Axes]]:
    """Axes beside each other to draw on, saved as build/bench/NAME.png."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    _, axes = plt.subplots(1, count, figsize=(width, 4), squeeze=False)
    yield list(axes[0])
    FOLDER.mkdir(parents=True, exist_ok=True)
    plt.tight_layout()
    plt.savefig(FOLDER / f"{name}.png", dpi=120)
    plt.close()


@contextmanager
def _picture(name: str, width: float) -> Iterator[Axes]:
    with _pictures(name, width, 1) as [axes]:
        yield axes


def _bars(axes: Axes, groups: Sequence[str], series: Mapping[str, Sequence[Estimate]]) -> None:
    width = 0.8 / len(series)
    for number, (label, estimates) in enumerate(series.items()):
        at = [group + (number - (len(series) - 1) / 2) * width for group in range(len(groups))]
        values = [estimate.value for estimate in estimates]
        spread = (
            [estimate.value - estimate.low for estimate in estimates],
            [estimate.high - estimate.value for estimate in estimates],
        )
        axes.bar(at, values, width, label=label, yerr=spread, capsize=3)
    axes.set_xticks(range(len(groups)), groups)


def bars(
    name: str,
    title: str,
    unit: str,
    groups: Sequence[str],
    series: Mapping[str, Sequence[Estimate]],
    bound: float | None = None,
    floor: float | None = None,
) -> None:
    """One bar a group and series with its interval; `bound` is drawn as the target. `floor`: the
    axis is logarithmic from there up, and linear down to nothing."""
    with _picture(name, max(5.0, 1.6 * len(groups) + 2)) as axes:
        _bars(axes, groups, series)
        if bound is not None:
            axes.axhline(bound, linestyle="--", color="grey", label=f"target {bound:g}")
        if floor is not None:
            axes.set_yscale("symlog", linthresh=floor)
            axes.set_ylim(bottom=0)
        axes.set_ylabel(unit)
        axes.set_title(title)
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1))


def panels(
    name: str,
    title: str,
    groups: Sequence[str],
    of: Mapping[str, Mapping[str, Sequence[Estimate]]],
) -> None:
    """Bars as `bars` has them: a panel for each unit of `of`, which are not on one scale."""
    with _pictures(name, 3.2 * len(of), len(of)) as every:
        for axes, (unit, series) in zip(every, of.items(), strict=True):
            _bars(axes, groups, series)
            axes.set_title(unit)
        every[0].figure.suptitle(title)
        every[-1].legend(loc="upper left", bbox_to_anchor=(1.01, 1))


def curves(
    name: str,
    title: str,
    across: str,
    unit: str,
    at: Sequence[float],
    series: Mapping[str, Sequence[float]],
) -> None:
    """Each series' values over the same places; values beyond 1 are on a logarithmic axis."""
    with _picture(name, 8.0) as axes:
        for number, (label, values) in enumerate(series.items()):
            style = "-" if number < COLOURS else "--"
            axes.plot(at, values, style, marker="o", label=label)
        axes.set_yscale("symlog", linthresh=1)
        axes.set_xlabel(across)
        axes.set_ylabel(unit)
        axes.set_title(title)
        axes.grid(True, alpha=0.3)
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1))


def heat(
    name: str,
    title: str,
    axes_of: tuple[str, str],
    labels: Sequence[str],
    values: Sequence[Sequence[float]],
) -> None:
    """A square of values, each written in its cell; `axes_of` names columns and rows."""
    with _picture(name, 5.0) as axes:
        axes.imshow(values, cmap="Blues", vmin=0)
        top = max(map(max, values))
        for row, cells in enumerate(values):
            for column, value in enumerate(cells):
                dark = value > top / 2
                axes.text(column, row, f"{value:.4g}", ha="center", color="w" if dark else "k")
        axes.set_xticks(range(len(labels)), labels)
        axes.set_yticks(range(len(labels)), labels)
        axes.set_xlabel(axes_of[0])
        axes.set_ylabel(axes_of[1])
        axes.set_title(title)
