#!/usr/bin/env python3
"""Makes notebooks/NN_name.ipynb with holes and notebooks/solved/NN_name.ipynb without, from notebooks/labs/NN_name.py.

  make_notebooks.py [--check]        --check writes nothing and exits 1 when a notebook is not what its source gives

A source is Python with cells, in the "percent" form that editors know:

    # %% [markdown]                    a text cell, each line behind "# "
    # %%                               a code cell;  "# %% varies": its output differs from machine to machine
    # hole NAME: what to do            what stands between these two lines is the solution; in the student's notebook
    # end                              it is fill_in("what to do"), at the same indentation
    predict("what", 8800)              the guess becomes three dots in the student's notebook
    # %% [wrong] NAME | sentence       another filling of the hole NAME, each line behind "# ", that a check must refuse
                                       with this sentence; it is in no notebook, tests/run_notebooks.py tries it

Outputs of a solved notebook are kept here as long as its code stands; tests/run_notebooks.py --update renews them.
"""
import argparse
import glob
import json
import os
import re
import subprocess
import sys

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FOLDER = os.path.join(TOP, "notebooks")
SETUP = """import sys
sys.path[:0] = [".", ".."]  # where lab.py and dualkv.py are
from lab import *  # np, plt, dk (the library), predict, reveal, check, fill_in, show and the drawings"""
HOLE = re.compile(r"^( *)# hole (\w+): ([^\n]*)\n(.*?)^ *# end\n", re.S | re.M)
GUESS = re.compile(r'^(predict\("[^"]*", ).*\)$', re.M)


CHECK = re.compile(r"^ *check\(", re.M)
LINK = re.compile(r"\]\(([^)]+)\)")


def moved(match):
    """A link as it reads from one folder further down, where every notebook has its neighbours again."""
    target = match.group(1)
    return "](%s)" % (target if re.match(r"[a-z]+:|[^/]+\.ipynb$", target) else "../" + target)


class Lab:
    """A source, taken apart: cells (kind, tags, text) and wrong answers (hole, sentence, lines)."""

    def __init__(self, path):
        self.path, self.name = path, os.path.splitext(os.path.basename(path))[0]
        self.cells, self.wrong = [], []
        with open(path, encoding="utf-8") as file:
            text = file.read()
        parts = re.split(r"^# %%(.*)\n", text, flags=re.M)
        if parts[0].strip():
            raise SystemExit("%s: there is text before the first cell" % path)
        for head, body in zip(parts[1::2], parts[2::2]):
            head, body = head.strip(), body.strip("\n") + "\n"
            plain = "\n".join(
                line[2:] if line.startswith("# ") else line.lstrip("#") for line in body.rstrip().split("\n")
            )
            if head == "[markdown]":
                self.cells.append(("markdown", [], plain))
            elif head.startswith("[wrong]"):
                hole, sentence = (part.strip() for part in head[len("[wrong]") :].split("|", 1))
                self.wrong.append((hole, sentence, plain))
            elif head in ("", "varies"):
                self.cells.append(("code", [head] if head else [], body))
            else:
                raise SystemExit("%s: a cell of unknown kind, '%s'" % (path, head))
        self.cells.insert(1, ("code", [], SETUP + "\n"))
        self.holes = {
            name: what for kind, _, body in self.cells if kind == "code" for _, name, what, _ in HOLE.findall(body)
        }
        self.guesses = [
            m.group(1).split('"')[1] for kind, _, body in self.cells if kind == "code" for m in GUESS.finditer(body)
        ]
        for hole, _, _ in self.wrong:
            if hole not in self.holes:
                raise SystemExit("%s: a wrong answer for the hole %s, which is not there" % (path, hole))

    def code(self, body, empty=(), without=(), answer=None):
        """A cell's text; empty holes get fill_in, `without` guesses get dots, answer = (hole, lines) fills one anew."""

        def fill(match):
            indent, name, what, inside = match.groups()
            if name in empty:
                return '%sfill_in("%s")  # your code in place of this line\n' % (indent, what.replace('"', "'"))
            if answer and name == answer[0]:
                return "".join(indent + line + "\n" if line else "\n" for line in answer[1].split("\n"))
            return "%s# the hole: %s\n%s" % (indent, what, inside)

        def guess(match):
            return match.group(1) + "...)" if match.group(1).split('"')[1] in without else match.group(0)

        return GUESS.sub(guess, HOLE.sub(fill, body)).strip("\n")

    def notebook(self, student):
        """The notebook as a dict, without outputs."""
        empty, without = (self.holes, self.guesses) if student else ((), ())
        cells = []
        for n, (kind, tags, body) in enumerate(self.cells):
            text = self.code(body, empty, without) if kind == "code" else body if student else LINK.sub(moved, body)
            if student and n == 0:
                text += (
                    "\n\n*Run the cells in order (shift and enter). Three dots wait for a guess, `fill_in` for your"
                    " code. Folded cells check it: run them too, and open them when you are done."
                    " [Solved](solved/%s.ipynb).*"
                    % self.name
                )
            cell = {
                "cell_type": kind,
                "id": "cell-%02d" % n,
                "metadata": {"tags": tags} if tags else {},
                "source": text.strip("\n").splitlines(keepends=True),
            }
            if kind == "code":
                cell.update(execution_count=None, outputs=[])
                if student and CHECK.search(body) and not HOLE.search(body):
                    cell["metadata"]["jupyter"] = {"source_hidden": True}  # it knows the answer
            cells.append(cell)
        return {
            "cells": cells,
            "nbformat": 4,
            "nbformat_minor": 5,
            "metadata": {
                "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
                "language_info": {"name": "python"},
            },
        }

    def paths(self):
        return os.path.join(FOLDER, self.name + ".ipynb"), os.path.join(FOLDER, "solved", self.name + ".ipynb")


def labs():
    """All sources in order."""
    return [Lab(path) for path in sorted(glob.glob(os.path.join(FOLDER, "labs", "*.py")))]


def read(path):
    """A notebook's JSON, or None."""
    if not os.path.exists(path):
        return None
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def write(path, notebook):
    """Writes it whole or not at all."""
    with open(path + ".part", "w", encoding="utf-8") as file:
        json.dump(notebook, file, ensure_ascii=False, indent=1, sort_keys=True)
        file.write("\n")
    os.replace(path + ".part", path)


def sources(notebook):
    """What must be equal: everything but outputs."""
    return notebook and [(c["cell_type"], "".join(c["source"]), c["metadata"]) for c in notebook["cells"]]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    stale, wanted = [], set()
    for lab in labs():
        for student, path in zip((True, False), lab.paths()):
            wanted.add(path)
            new, old = lab.notebook(student), read(path)
            if sources(new) == sources(old):
                continue
            stale.append(os.path.relpath(path, TOP))
            kept = {"".join(c["source"]): c for c in (old or {"cells": []})["cells"] if c["cell_type"] == "code"}
            for cell in new["cells"]:
                if cell["cell_type"] == "code" and "".join(cell["source"]) in kept:
                    cell.update({key: kept["".join(cell["source"])][key] for key in ("outputs", "execution_count")})
            if not options.check:
                write(path, new)
    known = subprocess.run(["git", "ls-files", "*.ipynb"], cwd=TOP, capture_output=True, text=True, check=False).stdout
    stale += [path + " (it has no source)" for path in known.split() if os.path.join(TOP, path) not in wanted]
    if options.check and stale:
        sys.exit("not what notebooks/labs gives: %s; make notebooks-update renews them" % ", ".join(stale))
    print("notebooks: " + ("wrote %s" % ", ".join(stale) if stale else "%d current" % len(wanted)))


if __name__ == "__main__":
    main()
