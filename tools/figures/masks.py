"""Rows, masks and tiles: what is stored once, who sees whom, which rows meet in a gradient."""

from figures.layouts import COPIES, SEVEN, TILED, TREE, exact_pairs
from figures.svg import Drawing, kind_of, n, on


def grammar():
    f = Drawing(
        146,
        "The colours of all figures",
        "Prompt rows are blue, responses orange, red, pink and yellow with their letters a, b, c, d; a copy of the"
        " prompt that sharing saves is grey and hatched; an empty square is a pair that is not seen. Tiles: full is"
        " solid, partial half filled along the diagonal, empty only outlined.",
    )
    for k, letter in enumerate("pabcd"):
        f.rect(12 + 34 * k, 14, 30, 26, kind_of(letter), 3)
        f.text(27 + 34 * k, 32, letter, on(letter) + " b", "middle")
    f.text(190, 32, "prompt p, responses a, b, c, d")
    f.rect(12, 54, 30, 26, "ghost")
    f.text(50, 72, "copy, saved")
    f.rect(150, 54, 30, 26, "empty")
    f.text(188, 72, "not seen, not computed")
    tile_square(f, "#", 12, 98, 34, "p")
    f.text(54, 120, "tile: full")
    tile_square(f, "+", 150, 98, 34, "p")
    f.text(192, 120, "partial")
    tile_square(f, ".", 290, 98, 34, "p")
    f.text(332, 120, "empty, skipped")
    return f


def packed_and_replicated():
    prompt, length, copies, unit = 8, 2, 4, 22.5
    f = Drawing(
        284,
        "One prompt with four responses, replicated and packed",
        f"Above, four sequences, each a prompt of {prompt} units and a response of {length}; three of the four prompts"
        f" are grey copies: {copies * (prompt + length)} units. Below, one packed row of the prompt followed by the"
        f" four responses: {prompt + copies * length} units.",
    )
    f.text(12, 24, "replicated: the prompt in every sequence", "b")
    for k, letter in enumerate("abcd"):
        y = 36 + 30 * k
        f.rect(12, y, prompt * unit, 24, "p" if k == 0 else "ghost", 3)
        f.text(12 + prompt * unit / 2, y + 17, "prompt" if k == 0 else "", "on-p", "middle")
        f.rect(14 + prompt * unit, y, length * unit, 24, kind_of(letter), 3)
        f.text(14 + (prompt + length / 2) * unit, y + 17, letter, on(letter) + " b", "middle")
    f.notes(
        252,
        60,
        "*N (P + R) rows",
        f"{copies} · ({prompt} + {length}) = {copies * (prompt + length)}",
        "",
        "~Causal masking makes all",
        "~copies equal, layer by layer",
    )
    f.text(12, 190, "packed: the prompt once", "b")
    f.rect(12, 202, prompt * unit, 24, "p", 3)
    f.text(12 + prompt * unit / 2, 219, "prompt", "on-p", "middle")
    for k, letter in enumerate("abcd"):
        x = 14 + (prompt + length * k) * unit + 2 * k
        f.rect(x, 202, length * unit, 24, kind_of(letter), 3)
        f.text(x + length * unit / 2, 219, letter, on(letter) + " b", "middle")
    f.text(12, 250, "P + N R rows", "b")
    f.text(130, 250, f"{prompt} + {copies} · {length} = {prompt + copies * length}")
    f.text(
        12,
        270,
        f"{copies * (prompt + length) / (prompt + copies * length):.1f} times less of everything that is done per row",
        "soft",
    )
    return f


def draw_mask(f, layout, x, y, cell, ghost=lambda i, j: False):
    """A square for each (query down, key across) that is seen, with the letters of rows and keys around."""
    for t in range(layout.rows):
        f.text(x - 8, y + (t + 0.5) * cell + 4.5, layout.letter[t], "b", "end")
        f.text(x + (t + 0.5) * cell, y - 7, layout.letter[t], "b", "middle")
    for i in range(layout.rows):
        for j in range(layout.rows):
            kind = "empty" if not layout.sees(i, j) else "ghost" if ghost(i, j) else kind_of(layout.letter[j])
            f.rect(x + j * cell + 1, y + i * cell + 1, cell - 2, cell - 2, kind, 2)


def mask_seven():
    layout, cell, x, y = SEVEN, 29, 76, 38
    f = Drawing(
        y + 7 * cell + 56,
        "The mask of seven tokens: a prompt of 3, responses a and b of 2",
        "A square of 7 by 7. Row i is a query, column j a key. The prompt's columns are filled from the diagonal to"
        f" the last row, those of a to the last row of a, those of b to the last row of b: {layout.pairs()} filled"
        f" squares. Below, end of each column: {' '.join(map(str, layout.end))}, and the position of each row:"
        f" {' '.join(map(str, layout.position))}.",
    )
    draw_mask(f, layout, x, y, cell)
    bottom = y + 7 * cell
    for label, values, dy in (("end", layout.end, 20), ("position", layout.position, 42)):
        f.text(x - 8, bottom + dy, label, "soft", "end")
        for j, value in enumerate(values):
            f.text(x + (j + 0.5) * cell, bottom + dy, value, "mono", "middle")
    f.notes(
        292,
        y + 12,
        "~down: query i",
        "~across: key j",
        "*i sees j exactly when",
        "*j <= i and i < end[j]",
        "",
        "Every column is one",
        "run, from the diagonal",
        "to end.",
        "",
        "a and b do not see",
        "each other; both see",
        "the whole prompt.",
    )
    return f


def mask_copies():
    layout, cell, x, y = COPIES, 25, 46, 40
    copied = (5, 6, 7)
    replicated, packed = exact_pairs(3, 2, 2)
    f = Drawing(
        y + 10 * cell + 28,
        "The same seven tokens as ten replicated rows",
        "A square of 10 by 10 with two triangles of five rows. In the second, the three by three triangle of the"
        f" prompt with itself is grey: it repeats the first. {replicated} pairs, where the packed mask has {packed}.",
    )
    draw_mask(f, layout, x, y, cell, lambda i, j: i in copied and j in copied)
    f.notes(
        304,
        y + 14,
        "Grey: the prompt's",
        "rows a second time,",
        "number by number.",
        "",
        f"*{replicated} pairs here,",
        f"*{packed} packed.",
        "",
        "~b reads its own copy",
        "~of the prompt; packed",
        "~it reads the one",
        "~prompt instead.",
    )
    return f


def mask_tree():
    layout, cell, x, y = TREE, 24, 40, 134
    f = Drawing(
        y + 12 * cell + 16,
        "A forest: a prompt, an answer a with two second turns b and c, another answer d",
        "A tree: p has the children a and d, a has the children b and c. Below, its mask of 12 by 12: a, b and c see"
        f" a's columns, d does not. {layout.pairs()} pairs are seen.",
    )
    place = {"p": (180, 22), "a": (110, 58), "d": (250, 58), "b": (70, 94), "c": (150, 94)}
    for s, parent in enumerate(layout.parents):
        if parent >= 0:
            (px, py), (cx, cy) = place[layout.letters[parent]], place[layout.letters[s]]
            f.line([(px, py), (cx, cy)])
    for s, letter in enumerate(layout.letters):
        cx, cy = place[letter]
        f.rect(cx - 30, cy - 12, 60, 24, kind_of(letter), 5)
        f.text(cx, cy + 4.5, f"{letter} · {layout.lengths[s]}", on(letter) + " b", "middle")
    draw_mask(f, layout, x, y, cell)
    f.notes(
        340,
        y + 14,
        "*listed",
        "*depth first:",
        "*p, a, b, c, d",
        "",
        "The rows below",
        "a segment are",
        "one run, and so",
        "is every column.",
    )
    return f


def tile_square(f, kind, x, y, size, colour):
    if kind == "#":
        f.rect(x + 1, y + 1, size - 2, size - 2, colour)
    else:
        f.rect(x + 1, y + 1, size - 2, size - 2, "empty")
    if kind == "+":
        f.shape([(x + 1, y + 1), (x + size - 1, y + size - 1), (x + 1, y + size - 1)], colour)


def tiles():
    layout, size, cell, x, y = TILED, 4, 26, 34, 36
    kinds = layout.tiles(size)
    count = {k: sum(row.count(k) for row in kinds) for k in "#+."}
    f = Drawing(
        y + 12 * cell + 62,
        "Tiles of 4 by 4 over the mask of a prompt of 24 with three responses of 8",
        f"{count['#']} tiles are full, {count['+']} partial on the diagonal, {count['.']} empty and skipped. The tile"
        " of rows 36 to 39, in response b, is framed: it needs two ranges of keys, the prompt without a mask and its"
        " own response up to itself.",
    )
    for t, row in enumerate(kinds):
        f.text(x - 8, y + (t + 0.5) * cell + 4.5, layout.letter[t * size], "b", "end")
        f.text(x + (t + 0.5) * cell, y - 8, layout.letter[t * size], "b", "middle")
        for k, kind in enumerate(row):
            tile_square(f, kind, x + k * cell, y + t * cell, cell, kind_of(layout.letter[k * size]))
    row = 9
    own = layout.start[layout.segment[row * size]] // size
    prompt = layout.lengths[0] // size
    f.rect(x, y + row * cell, prompt * cell, cell, "frame")
    f.rect(x + own * cell, y + row * cell, (row + 1 - own) * cell, cell, "frame")
    bottom = y + 12 * cell
    f.text(14, bottom + 22, "1st key range: the prompt", "b")
    f.text(14, bottom + 40, "no mask code", "soft")
    f.text(248, bottom + 22, "2nd: its own response", "b")
    f.text(248, bottom + 40, "masked at its end only", "soft")
    for k, (kind, words) in enumerate((("#", "full"), ("+", "partial"), (".", "skipped"))):
        tile_square(f, kind, 362, y + 6 + 34 * k, cell, "p")
        f.text(394, y + 24 + 34 * k, f"{count[kind]} {words}")
    return f


def backward():
    layout, x, cell = SEVEN, 30, 34
    f = Drawing(
        328,
        "Which queries feed the gradient of a prompt key",
        "Seven query rows p p p a a b b on the left, each with an arrow to the key row 0 on the right: dk and dv of row"
        " 0 are one sum over the prompt's own rows and the rows of both responses. Below, the key row 3 of response a"
        " receives arrows from the two rows of a only.",
    )
    target = {0: (350, 108), 3: (350, 226)}
    f.text(x, 24, "query rows i, with q, dout, lse, delta", "b")
    for i in range(7):
        y = 38 + i * cell
        f.rect(x, y, 44, 28, kind_of(layout.letter[i]), 3)
        f.text(x + 22, y + 19, f"{i} {layout.letter[i]}", on(layout.letter[i]) + " b", "middle")
        for j, (tx, ty) in target.items():
            if layout.sees(i, j):
                f.path(f"M{x + 48} {n(y + 14)}C200 {n(y + 14)} 240 {ty} {tx - 8} {ty}", "l" + layout.letter[i])
    for j, (tx, ty) in target.items():
        letter = layout.letter[j]
        rows = [i for i in range(7) if layout.sees(i, j)]
        f.rect(tx, ty - 24, 112, 48, kind_of(letter), 4)
        f.text(tx + 56, ty - 4, f"key row {j} {letter}", on(letter) + " b", "middle")
        f.text(tx + 56, ty + 14, "dk, dv", on(letter), "middle")
        f.text(tx + 56, ty + 42, f"rows {rows[0]} .. {rows[-1]}", "soft", "middle")
    f.notes(tx, 54, "one sum over", "*p, a and b")
    f.notes(
        x,
        300,
        "~Rows j .. end[j] - 1 feed key j. dq of a row has one",
        "~owner; dk and dv are sums in fp32, rounded once.",
    )
    return f


def fold():
    f = Drawing(
        256,
        "Forward copies, backward adds up",
        "Ten replicated rows above, seven packed rows below. Packed rows 0, 1 and 2, the prompt, are joined to two"
        " replicated rows each, all others to one. Forward, the map copies; backward, the gradients of both copies are"
        " added: for row 0, 5 from the copy of a plus 2 from the copy of b are 7.",
    )
    cell, top, low = 43, 60, 170
    packed_of = [0, 1, 2, 3, 4, 0, 1, 2, 5, 6]
    for r, t in enumerate(packed_of):
        letter = SEVEN.letter[t]
        x = 24 + cell * r + (8 if r > 4 else 0)
        bottom_x = 84 + cell * t
        f.line([(x + 18, top + 28), (bottom_x + 18, low)], "l" if t < 3 else "thin")
        f.rect(x, top, 36, 28, "ghost" if r in (5, 6, 7) else kind_of(letter), 3)
        f.text(x + 18, top + 19, letter, "b" if r in (5, 6, 7) else on(letter) + " b", "middle")
    for t in range(7):
        letter, x = SEVEN.letter[t], 84 + cell * t
        f.rect(x, low, 36, 28, kind_of(letter), 3)
        f.text(x + 18, low + 19, letter, on(letter) + " b", "middle")
    f.text(24, 24, "replicated rows r", "b")
    f.text(42, 48, "dv = 5", "mono", "middle")
    f.text(265, 48, "dv = 2", "mono", "middle")
    f.notes(24, low + 54, "*packed rows m(r)", "dv of row 0 = 5 + 2 = 7: the sum, not the mean")
    f.text(24, low - 20, "copy ↑", "soft")
    f.text(410, low - 20, "sum ↓", "soft")
    return f


def areas():
    prompt, length, copies = 66, 30, 3
    replicated, packed = copies * (prompt + length) ** 2 / 2, prompt**2 / 2 + copies * (length * prompt + length**2 / 2)
    f = Drawing(
        334,
        "Where rho and A come from: rows are lengths, pairs are areas",
        "Above, three triangles side by side, one a sequence: in each a prompt triangle, a rectangle of response rows"
        " by prompt keys, and a small response triangle; the second and third prompt triangles are grey copies. Below,"
        " packed: one prompt triangle, and three rectangles with their triangles stay. Rows shrink by rho; areas shrink"
        " by A, less, since the rectangles are not shared.",
    )

    def one(x, y, letter, prompt_kind, with_prompt=True):
        if with_prompt:
            f.shape([(x, y), (x + prompt, y + prompt), (x, y + prompt)], prompt_kind)
        f.rect(x, y + prompt, prompt, length, "p")
        f.shape(
            [(x + prompt, y + prompt), (x + prompt + length, y + prompt + length), (x + prompt, y + prompt + length)],
            kind_of(letter),
        )

    f.text(12, 22, "replicated: N triangles of P + R rows", "b")
    for k, letter in enumerate("abc"):
        one(14 + 118 * k, 34, letter, "p" if k == 0 else "ghost")
    f.notes(352, 60, "*rows", "N (P + R)", "*pairs", "N (P + R)²/2")
    f.text(12, 166, "packed: one prompt triangle; the rectangles stay", "b")
    f.shape([(14, 178), (14 + prompt, 178 + prompt), (14, 178 + prompt)], "p")
    for k, letter in enumerate("abc"):
        one(14 + 118 * k, 178, letter, "p", k == 0)
    for k in (1, 2):
        f.text(14 + 118 * k + 33, 230, "saved", "soft", "middle")
    f.notes(352, 200, "*rows", "P + N R", "*pairs", "P²/2 + N R P", "+ N R²/2")
    rho = copies * (prompt + length) / (prompt + copies * length)
    f.notes(
        14,
        304,
        f"*rho = {rho:.2f} in rows, A = {replicated / packed:.2f} in pairs",
        f"~P = {prompt}, R = {length}, N = {copies}, to scale",
    )
    return f


FIGURES = {
    "grammar": grammar,
    "packed_and_replicated": packed_and_replicated,
    "mask_seven": mask_seven,
    "mask_copies": mask_copies,
    "mask_tree": mask_tree,
    "tiles": tiles,
    "backward_sum": backward,
    "fold": fold,
    "areas": areas,
}
