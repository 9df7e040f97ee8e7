"""Layouts, computed from the one rule: row i sees row j exactly when j <= i and i < end[j].

The same numbers as `dkv_layout_forest` (common/layout.c), `dkv_sees` (common/mask.h) and `dkv_tile_classify`
(common/tiles.c); `check` holds them against what the program prints.
"""

import subprocess


class Layout:
    """Segments listed depth first: parents, lengths, and a letter for each."""

    def __init__(self, parents, lengths, letters, flags):
        self.parents, self.lengths, self.letters, self.flags = parents, lengths, letters, flags
        start, t = [], 0
        for length in lengths:
            start.append(t)
            t += length
        subtree_end = [s + length for s, length in zip(start, lengths)]
        for s in range(len(parents) - 1, -1, -1):
            if parents[s] >= 0:
                subtree_end[parents[s]] = max(subtree_end[parents[s]], subtree_end[s])
        self.rows, self.start = t, start
        self.segment = [s for s, length in enumerate(lengths) for _ in range(length)]
        self.end = [subtree_end[s] for s in self.segment]
        self.letter = [letters[s] for s in self.segment]
        self.position = [sum(self.sees(i, j) for j in range(t)) - 1 for i in range(t)]

    def sees(self, i, j):
        return j <= i < self.end[j]

    def pairs(self):
        return sum(self.sees(i, j) for i in range(self.rows) for j in range(self.rows))

    def tile(self, i0, j0, size):
        """'.' empty, '#' full, '+' partial."""
        rows, keys = range(i0, min(i0 + size, self.rows)), range(j0, min(j0 + size, self.rows))
        seen = sum(self.sees(i, j) for i in rows for j in keys)
        return "." if seen == 0 else "#" if seen == len(rows) * len(keys) else "+"

    def tiles(self, size):
        return [[self.tile(i, j, size) for j in range(0, self.rows, size)] for i in range(0, self.rows, size)]


def group(prompt, responses, length):
    letters = "p" + "abcdefgh"[:responses]
    flags = ["--prompt", str(prompt), "--responses", str(responses), "--response-length", str(length)]
    return Layout([-1] + [0] * responses, [prompt] + [length] * responses, letters, flags)


def replicated(prompt, responses, length):
    """The ordinary batch: every response behind its own copy of the prompt."""
    parents = [parent for k in range(responses) for parent in (-1, 2 * k)]
    return Layout(parents, [prompt, length] * responses, "".join("p" + "abcd"[k] for k in range(responses)), None)


SEVEN = group(3, 2, 2)
COPIES = replicated(3, 2, 2)
TILED = group(24, 3, 8)
TREE = Layout([-1, 0, 1, 1, 0], [3, 2, 2, 1, 4], "pabcd", ["--tree", "-1:3,0:2,1:2,1:1,0:4"])


def rho(prompt, responses, length):
    return responses * (prompt + length) / (prompt + responses * length)


def pair_ratio(prompt, responses, length):
    whole = prompt + length
    return responses * whole * whole / (prompt * prompt + responses * length * (2 * prompt + length))


def causal(n):
    return n * (n + 1) // 2


def exact_pairs(prompt, responses, length):
    """(replicated, packed)"""
    return (responses * causal(prompt + length), causal(prompt) + responses * (length * prompt + causal(length)))


def printed(program, *arguments):
    return subprocess.run([program, *arguments], check=True, capture_output=True, text=True).stdout.split("\n")


def wrong(program):
    """Sentences about what the program says otherwise than these figures."""
    found = []

    def compare(what, ours, theirs):
        if ours != theirs:
            found.append(f"{what}: the figures say {ours}, {program} says {theirs}")

    for layout in (SEVEN, TREE, TILED):
        size = 4 if layout is TILED else 2
        lines = [line.split() for line in printed(program, "layout", *layout.flags, "--tile", str(size))]
        name = " ".join(layout.flags)
        compare(
            name + ", pairs",
            [str(layout.pairs())],
            [w[2] for w in lines if len(w) > 4 and w[3:5] == ["visible", "pairs,"]],
        )
        tiles = layout.tiles(size)
        rows = [w[1:] for w in lines if len(w) == len(tiles) + 1 and w[0].isdigit() and set(w[1:]) <= set("#+.")]
        compare(name + ", tiles", tiles, rows)
        if layout is TILED:
            continue
        for label, ours in (("position", layout.position), ("end", layout.end)):
            compare(f"{name}, {label}", [str(x) for x in ours], next((w[1:] for w in lines if w[:1] == [label]), None))
        mask = [
            [layout.letter[j] if layout.sees(i, j) else "." for j in range(layout.rows)] for i in range(layout.rows)
        ]
        compare(
            name + ", mask",
            mask,
            [w[2:] for w in lines if len(w) == layout.rows + 2 and len(w[1]) == 1 and w[0].isdigit()],
        )
    for shape in ((8192, 16, 1024), (4096, 16, 512), (512, 4, 4096)):
        flags = [w for pair in zip(("--prompt", "--responses", "--response-length"), map(str, shape)) for w in pair]
        closed = next(line for line in printed(program, "cost", *flags) if "closed form" in line)
        compare(f"{shape}, rho", f"{rho(*shape):.4f}", closed.split("= ")[2].split()[0])
        compare(f"{shape}, A", f"{pair_ratio(*shape):.4f}", closed.split("= ")[-1].strip())
    return found
