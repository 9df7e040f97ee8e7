#!/usr/bin/env python3
"""Draws every figure of docs/figures from the rules and the measurements that the figure is about.

  make_figures.py [--check] [--program build/dualkv] [NAME...]

--check writes nothing and exits 1 when a figure would change.  With --program, the layouts, masks, tiles and ratios
that the figures are drawn from are first compared with what the program prints, and its learning curves are drawn.
Figures of measurements read docs/results; none has a number of its own.  Each figure must be shown on some page, with a
text for those who cannot see it.  Python's standard library is all that it needs; tools/figures/svg.py has the colours.
"""

import argparse
import glob
import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
sys.dont_write_bytecode = True
from figures import costs, kernels, layouts, masks, training  # noqa: E402  (the folder beside this file)

TOP = os.path.dirname(HERE)
FOLDER = os.path.join(TOP, "docs", "figures")
# Learning curves, which the program draws itself: title and metrics under docs/results/training.
PLOTS = {
    "training_layouts": ("Packed and replicated: the same steps, not seconds", ["layouts_packed", "layouts_replicated"]),
    "training_seeds": ("Sorting, three seeds, DAPO, N = 32", [f"sort_seed{seed}" for seed in (1, 2, 3)]),
}
FIGURES = {**masks.FIGURES, **costs.FIGURES, **kernels.FIGURES, **training.FIGURES}


def plot(name, program):
    """What `dualkv plot` draws from committed metrics."""
    title, runs = PLOTS[name]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "plot.svg")
        metrics = [os.path.join(TOP, "docs", "results", "training", run + ".jsonl") for run in runs]
        subprocess.run([program, "plot", *metrics, "-o", path, "--title", title], check=True, stdout=subprocess.DEVNULL)
        with open(path, encoding="utf-8") as file:
            return file.read()


def unseen():
    """Sentences about figures that no page shows, and about pictures without a text."""
    shown, found = set(), []
    for path in [os.path.join(TOP, "README.md"), *sorted(glob.glob(os.path.join(TOP, "*", "*.md")))]:
        with open(path, encoding="utf-8") as file:
            for words, name in re.findall(r"!\[([^\]]*)\]\([\w./]*figures/(\w+)\.svg\)", file.read()):
                shown.add(name)
                if len(words.split()) < 3:
                    found.append(
                        f"{os.path.relpath(path, TOP)}: the picture {name} has no text that says what it shows"
                    )
    return found + [f"no page shows the figure {name}" for name in [*FIGURES, *PLOTS] if name not in shown]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--program")
    parser.add_argument("names", nargs="*", metavar="NAME")
    options = parser.parse_args()
    drawable = [*FIGURES, *(PLOTS if options.program else [])]
    unknown = [name for name in options.names if name not in drawable]
    if unknown:
        sys.exit(f"make_figures: there is no figure named {unknown[0]}; there are {', '.join(drawable)}")
    if options.program:
        wrong = layouts.wrong(options.program) + costs.wrong(options.program)
        if wrong:
            sys.exit("make_figures: " + "\n".join(wrong))
    stale = []
    for name in options.names or drawable:
        path = os.path.join(FOLDER, name + ".svg")
        new = plot(name, options.program) if name in PLOTS else FIGURES[name]().svg()
        old = open(path, encoding="utf-8").read() if os.path.exists(path) else ""
        if new == old:
            continue
        stale.append(name)
        if not options.check:
            with open(path + ".part", "w", encoding="utf-8") as file:
                file.write(new)
            os.replace(path + ".part", path)
    if options.check and stale:
        sys.exit(f"stale figures: {', '.join(stale)}; make figures draws them again")
    if options.check and unseen():
        sys.exit("make_figures: " + "\n".join(unseen()))
    print(f"figures: {len(options.names or drawable)}, " + (f"drew {', '.join(stale)}" if stale else "current"))


if __name__ == "__main__":
    main()
