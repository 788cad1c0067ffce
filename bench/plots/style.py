"""How our pictures look: one colour a policy wherever it appears, readable without colours and when printed grey."""

from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib as mpl
from PIL import Image

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.figure import Figure

# Families of policies in one hue each, members told apart by lightness and, in curves, by dashes; hues are those of
# Okabe and Ito, which people see apart whatever their colour vision.
FAMILIES: dict[str, dict[str, str]] = {
    "request level": {
        "static": "#222222", "static_impatient": "#555555", "packed_static": "#888888", "turbo": "#AAAAAA",
    },
    "cells": {"cellular": "#CC79A7"},
    "reserves the maximum": {
        "orca": "#B34700", "tgi": "#D55E00", "ray_serve_2023": "#E69F00", "trtllm_no_evict": "#F0C050",
    },
    "pages": {"vllm_v0": "#003F66", "chunked": "#0072B2", "splitfuse": "#56B4E9", "fair": "#9AD2F2"},
    "predicts the peak": {"lightllm": "#00543D", "trtllm_max_utilization": "#009E73", "sglang": "#66C9A8"},
}  # fmt: skip
_DASHES = ("-", (0, (5, 2)), (0, (2, 1.2)), (0, (6, 2, 1.5, 2)))
KIND_COLOURS = {"prefill": "#0072B2", "decode": "#56B4E9", "idle": "#D9D9D9"}
REQUEST_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#8C6D31", "#7A5195")
GREY = "#666666"


def colour(policy: str) -> str:
    return next((members[policy] for members in FAMILIES.values() if policy in members), GREY)


def dashes(policy: str) -> Any:
    for members in FAMILIES.values():
        if policy in members:
            return _DASHES[list(members).index(policy) % len(_DASHES)]
    return "-"


def tint(colour: str, share: float) -> tuple[float, float, float]:
    """`colour` mixed with white; `share` 1 is the colour itself."""
    red, green, blue = mpl.colors.to_rgb(colour)
    return 1 - share * (1 - red), 1 - share * (1 - green), 1 - share * (1 - blue)


def figure(rows: int = 1, columns: int = 1, **options: Any) -> tuple[Figure, Any]:
    """A figure with axes [rows, columns], always as a two-dimensional array."""
    plt.rcParams.update({
        "font.family": "DejaVu Sans", "font.size": 11, "axes.titlesize": 12, "axes.titleweight": "bold",
        "axes.spines.top": False, "axes.spines.right": False, "axes.titlelocation": "left", "figure.dpi": 100,
        "axes.edgecolor": GREY, "legend.frameon": False, "hatch.linewidth": 0.6,
    })  # fmt: skip
    return plt.subplots(rows, columns, squeeze=False, layout="constrained", **options)


def caption(figure: Figure, title: str, text: str = "") -> None:
    """A title over the whole figure, left, and beneath it one line that says what is seen."""
    size = {"ha": "left", "x": 0.01, "fontsize": 15, "fontweight": "bold"}
    if not text:
        figure.suptitle(title, **size)
        return
    heading = figure.suptitle(f"{title}\n ", **size)          # the layout keeps room for a second line
    figure.draw_without_rendering()
    box = heading.get_window_extent().transformed(figure.transFigure.inverted())
    figure.text(0.01, box.y0 + 0.22 * box.height, text, fontsize=10.5, color=GREY, va="center")


def save(figure: Figure, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = BytesIO()
    figure.savefig(image, dpi=130, facecolor="white")
    plt.close(figure)
    # 256 colours are enough for a chart, and a third of the bytes.
    Image.open(image).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
    return path
