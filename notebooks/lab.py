"""lab: what every lab uses besides dualkv.py: predict, reveal, check, fill_in, show, and drawings of one grammar.

    predict("rows of both layouts", 8800)       records your guess; None goes on without one
    reveal("rows of both layouts", 8800, why)   your guess beside the result, and the reason
    check("rows", got, want, mistakes=...)      says "right", or raises Wrong with a sentence: a known mistake is named
    fill_in("return the rows")                  stands where your code belongs, and raises FillIn
    show(figure, "what is to be seen")          the picture, with its text for readers who cannot see it

Colours: the prompt is blue, each response has a warm colour of its own, what is hidden is white, repeated work is
grey.  They stay apart for colour-blind readers, and letters or hatching repeat what they say.
"""

import io
import json
import os
import sys

import numpy as np
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

import dualkv as dk

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RESULTS = os.path.join(ROOT, "docs", "results")
PROMPT, GHOST, HIDDEN, INK = "#0072B2", "#BBBBBB", "#FFFFFF", "#222222"
RESPONSES = ("#E69F00", "#D55E00", "#CC79A7", "#F0E442")
COOL = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")

__all__ = [
    "np",
    "plt",
    "dk",
    "predict",
    "reveal",
    "check",
    "fill_in",
    "show",
    "draw_mask",
    "draw_tiles",
    "draw_batches",
    "axes",
    "letters",
    "colours",
    "seven",
    "results",
    "training",
    "measurements",
    "gpu_runs",
    "table",
    "PROMPT",
    "GHOST",
    "INK",
    "RESPONSES",
    "COOL",
]

plt.rcParams.update(
    {
        "font.size": 10,
        "axes.titlesize": 11,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "figure.facecolor": "white",
        "legend.frameon": False,
        "hatch.linewidth": 0.6,
        "savefig.dpi": 96,
    }
)


class Stop(Exception):
    """An end that is meant: notebooks show its sentence alone, without the way there."""

    def _render_traceback_(self):
        return ["%s: %s" % (type(self).__name__, self)]


class FillIn(Stop):
    """A hole that nobody has filled."""


class Wrong(Stop):
    """An answer that is not right, and what may be wrong with it."""


# --- predict, run, reveal, check ------------------------------------------------------------------------------------

_guesses = {}


def predict(what, guess):
    """Records a guess (a number, a word, or None for "I go on without")."""
    if guess is Ellipsis:
        raise FillIn("fill in your prediction in place of the three dots: %s (None goes on without one)" % what)
    _guesses[what] = guess
    print("%s: you say %s" % (what, "nothing" if guess is None else guess))


def reveal(what, value, why, digits=4):
    """The guess beside the result, and the reason."""
    text = value if isinstance(value, str) else "%.*g" % (digits, value) if isinstance(value, float) else str(value)
    guess = _guesses.get(what)
    said = "no guess" if guess is None else "you said %s" % guess
    print("%s: %s; it is %s\n  %s" % (what, said, text, why))


def fill_in(what):
    """Stands in a hole."""
    raise FillIn("fill in: %s" % what)


def _far(got, want, tolerance):
    """Where two arrays of one shape differ by more than tolerance times the size of the wanted numbers; NaN does."""
    if want.dtype.kind not in "fiub" or got.dtype.kind not in "fiub":
        return got != want
    size = max(1.0, np.abs(want[np.isfinite(want)]).max(initial=0))
    with np.errstate(invalid="ignore"):  # inf - inf
        return ~((got == want) | (np.abs(got.astype(float) - want.astype(float)) <= tolerance * size))


def _close(got, want, tolerance):
    got, want = np.asarray(got), np.asarray(want)
    return got.shape == want.shape and not np.any(_far(got, want, tolerance))


def check(what, got, want, tolerance=1e-9, mistakes=()):
    """Compares an answer with the right one.  Mistakes are pairs (wrong answer, or a function that recognises one; what
    it is) that deserve a sentence of their own."""
    if got is None:
        raise Wrong("%s: nothing came back; does the function return its result?" % what)
    if isinstance(got, (list, tuple)) and not isinstance(want, (list, tuple)):
        got = np.asarray(got)
    if _close(got, want, tolerance):
        print("right: %s" % what)
        return
    for wrong, sentence in mistakes:
        if wrong(got) if callable(wrong) else not _close(wrong, want, tolerance) and _close(got, wrong, tolerance):
            raise Wrong("%s: %s" % (what, sentence))
    a, b = np.asarray(got), np.asarray(want)
    if a.shape != b.shape:
        raise Wrong("%s: the answer has the shape %s, wanted is %s" % (what, a.shape, b.shape))
    if a.ndim == 0:
        raise Wrong("%s: %s is not it" % (what, got))
    bad = tuple(np.argwhere(_far(a, b, tolerance))[0])
    raise Wrong(
        "%s: the first difference is at [%s]: %s, wanted is %s" % (what, ", ".join(map(str, bad)), a[bad], b[bad])
    )


# --- pictures -------------------------------------------------------------------------------------------------------


def show(figure, text):
    """Shows a figure as a small PNG with `text` as its alternative and below it."""
    figure.tight_layout()
    raw = io.BytesIO()
    figure.savefig(raw, format="png", metadata={"Software": None})
    plt.close(figure)
    try:
        from IPython import get_ipython
        from IPython.display import display

        running = get_ipython() is not None
    except ImportError:
        running = False
    if running:
        display(
            {"image/png": _small(raw.getvalue()), "text/plain": "[picture: %s]" % text},
            raw=True,
            metadata={"image/png": {"alt": text}},
        )
    print("Picture: " + text)


def _small(png):
    """The same picture with at most 96 colours, a third of the bytes."""
    import base64
    from PIL import Image

    out = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").quantize(96, dither=0).save(out, "PNG", optimize=True)
    return base64.b64encode(out.getvalue()).decode()


def axes(width=7.0, height=3.2, columns=1, **options):
    """A figure and its axes, in one row."""
    figure, axs = plt.subplots(1, columns, figsize=(width, height), **options)
    return figure, axs


def seven():
    """The running example: a prompt of 3, responses a and b of 2."""
    return dk.group(3, [2, 2])


def colours(layout):
    """[T] a colour for each row: prompts blue, every other segment warm."""
    warm = iter(range(10**9))
    of = [PROMPT if p < 0 else RESPONSES[next(warm) % len(RESPONSES)] for p in layout.parent]
    return [of[s] for s in layout.segment]


def letters(layout):
    """[T] a letter for each row: p for roots, then a, b, c, ..."""
    count, of = 0, []
    for parent in layout.parent:
        of.append("p" if parent < 0 else chr(ord("a") + count % 26))
        count += parent >= 0
    return [of[s] for s in layout.segment]


def draw_mask(ax, layout, title="", mask=None, copies=None):
    """The mask: row i (down) sees key j (across); a seen square has the key's colour and letter.  copies = (packed
    layout, row_map) draws a replicated layout in the colours of the rows it copies."""
    mask = layout.mask() if mask is None else np.asarray(mask)
    T, colour, letter = layout.rows, colours(layout), letters(layout)
    if copies:
        colour, letter = ([of(copies[0])[r] for r in copies[1]] for of in (colours, letters))
    for i in range(T):
        for j in range(T):
            ax.add_patch(
                plt.Rectangle(
                    (j, i), 1, 1, facecolor=colour[j] if mask[i, j] else HIDDEN, edgecolor="#DDDDDD", linewidth=0.5
                )
            )
            if mask[i, j] and T <= 14:
                ax.text(
                    j + 0.5,
                    i + 0.5,
                    letter[j],
                    ha="center",
                    va="center",
                    fontsize=8,
                    color="white" if colour[j] == PROMPT else INK,
                )
    _frame(ax, T, title, "%d %s" if T <= 14 else None, letter)


def _frame(ax, T, title, tick, letter):
    ax.set(xlim=(0, T), ylim=(T, 0), aspect="equal", title=title, xlabel="key row j", ylabel="query row i")
    if tick:
        ax.set_xticks(np.arange(T) + 0.5, [tick % (i, letter[i]) for i in range(T)], fontsize=7)
        ax.set_yticks(np.arange(T) + 0.5, [tick % (i, letter[i]) for i in range(T)], fontsize=7)
    ax.tick_params(length=0)


def draw_tiles(ax, layout, tile, title=""):
    """Tiles of tile x tile: FULL solid, PARTIAL with stripes, EMPTY dotted, in the colour of the key's segment."""
    T, colour = layout.rows, colours(layout)
    for i in range(0, T, tile):
        for j in range(0, T, tile):
            i1, j1 = min(i + tile, T), min(j + tile, T)
            kind = layout.tile_class(i, i1, j, j1)
            ax.add_patch(
                plt.Rectangle(
                    (j, i),
                    j1 - j,
                    i1 - i,
                    edgecolor="#888888" if kind != "empty" else "#DDDDDD",
                    linewidth=0.6,
                    facecolor=colour[j] if kind == "full" else HIDDEN,
                )
            )
            if kind != "full":
                ax.add_patch(
                    plt.Rectangle(
                        (j, i),
                        j1 - j,
                        i1 - i,
                        fill=False,
                        linewidth=0,
                        hatch="////" if kind == "partial" else "..",
                        edgecolor=colour[j] if kind == "partial" else "#EEEEEE",
                    )
                )
    _frame(ax, T, title, None, None)


def draw_batches(ax, prompt, lengths, title=""):
    """Both batches to scale: repeated prompts grey, the packed group below."""
    for n, length in enumerate(lengths):
        ax.barh(n, prompt, color=PROMPT if n == 0 else GHOST, hatch="" if n == 0 else "//", edgecolor="white")
        ax.barh(n, length, left=prompt, color=RESPONSES[n % 4], edgecolor="white")
    y = len(lengths) + 0.6
    ax.barh(y, prompt, color=PROMPT, edgecolor="white")
    left = prompt
    for n, length in enumerate(lengths):
        ax.barh(y, length, left=left, color=RESPONSES[n % 4], edgecolor="white")
        left += length
    ax.set(
        yticks=[(len(lengths) - 1) / 2, y], yticklabels=["replicated", "packed"], xlabel="rows (tokens)", title=title
    )
    ax.invert_yaxis()


# --- committed measurements -----------------------------------------------------------------------------------------


def results(name):
    """A file of docs/results, read as JSON."""
    with open(os.path.join(RESULTS, name), encoding="utf-8") as file:
        return json.load(file)


def training(name, kind):
    """The lines of one kind ("run", "step", "evaluation", "self_check") of a file of docs/results/training."""
    with open(os.path.join(RESULTS, "training", name), encoding="utf-8") as file:
        return [line for line in map(json.loads, file) if line["kind"] == kind]


def _tool(name):
    """A module of tools/: what renders the tables of README and docs also feeds the labs, so both say the same."""
    sys.path.append(os.path.join(ROOT, "tools"))
    try:
        return __import__(name)
    finally:
        sys.path.pop()


def measurements():
    """Committed runs of `dualkv bench`, as dicts."""
    return _tool("make_tables").measurements()


def gpu_runs(direction, kernels):
    """For each of the kernels ("naive", ...) that was timed on a GPU its run in the chapters' tables: a dict of kernel,
    shape (N, P, R), heads, d, dtype, ms, tflops (useful, packed), replicated_ms or None, device, date, file."""
    return list(_tool("course_tables").chosen(_tool("make_tables").gpu_records(), direction, kernels))


def table(name):
    """A generated table of chapters 08 to 10 as (rows, origin): rows are dicts of texts by column."""
    lines = _tool("course_tables").TABLES[name](_tool("make_tables"))
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return [dict(zip(cells[0], row)) for row in cells[2:]], " ".join(
        line.replace("`", "") for line in lines if line.startswith("Measured")
    )
