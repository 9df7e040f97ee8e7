"""The decoder on packed rows, the rows that predict, the step of training around it, and the clipped loss."""

from figures.layouts import SEVEN
from figures.svg import Axis, Drawing, kind_of, on


def predictions(layout):
    """(source, target): each response row is predicted by the row before it on its path, as dkv_predictions says."""
    pairs = []
    for t in range(layout.rows):
        if layout.parents[layout.segment[t]] >= 0:
            pairs.append(([i for i in range(t) if layout.sees(t, i)][-1], t))
    return pairs


def decoder():
    layout, left, cell = SEVEN, 130, 48
    pairs = predictions(layout)
    sources = [source for source, _ in pairs]
    f = Drawing(
        462,
        "A decoder on seven packed rows, and the rows that predict",
        "Seven columns p p p a a b b. Embedding, norm and projections, rotation by position, projection and MLP are a"
        " box a row; only attention joins columns: a and b read p, not each other. On top, only rows"
        f" {', '.join(map(str, sorted(set(sources))))} go through the LM head; row 2 predicts both first tokens.",
    )
    stages = [
        ("embed", 38),
        ("norm, q k v", 84),
        ("rotate by", 130),
        ("attention", 182),
        ("project, +", 268),
        ("norm, MLP, +", 314),
    ]
    f.text(14, 22, "one column a row, top to bottom", "b")
    for name, y in stages:
        f.text(14, y + 20, name, "soft")
    f.text(14, 166, "position", "soft")
    for t in range(7):
        x, letter = left + cell * t, layout.letter[t]
        for name, y in stages:
            if name == "attention":
                continue
            f.rect(x, y, 40, 30, kind_of(letter), 3)
            words = letter if name == "embed" else layout.position[t] if name == "rotate by" else ""
            f.text(x + 20, y + 20, words, on(letter) + " b", "middle")
        for y in (70, 116, 162, 252, 300):
            f.line([(x + 20, y - 2), (x + 20, y + 12)], "thin")
    f.rect(left - 6, 176, 7 * cell + 4, 74, "box", 6)
    for i in range(7):
        for j in range(i + 1):
            if layout.sees(i, j):
                f.line([(left + cell * j + 20, 184), (left + cell * i + 20, 242)], "l" + layout.letter[i])
    f.text(14, 386, "LM head", "soft")
    for t in sorted(set(sources)):
        x, letter = left + cell * t, layout.letter[t]
        f.line([(x + 20, 346), (x + 20, 362)], "l", True)
        f.rect(x, 366, 40, 30, kind_of(letter), 3)
        targets = ", ".join(str(b) for a, b in pairs if a == t)
        f.text(x + 20, 386, f"→{targets}".replace(", ", " "), on(letter) + " b", "middle", 12)
    f.notes(
        14,
        424,
        f"{len(pairs)} predictions from {len(set(sources))} rows: row 2 predicts the first",
        "token of a (row 3) and of b (row 5); rows 4 and 6 none.",
    )
    return f


def training_step():
    f = Drawing(
        404,
        "One step of training, on packed rows",
        "Prompts; N responses each are sampled, the prompt's K and V computed once; rewards; groups with equal rewards"
        " are dropped; advantages, each against its siblings; one packed batch per group; log-probabilities of the rows"
        " that predict; clipped loss over all response tokens; backward, the prompt's gradient a sum over N; AdamW; and"
        " again.",
    )
    boxes = [
        (14, 14, ["prompts", "G groups"]),
        (14, 92, ["sample N responses", "prompt's K, V once"]),
        (14, 170, ["rewards", "equal ones: group dropped"]),
        (14, 248, ["advantages", "against the siblings"]),
        (256, 248, ["packed batch", "P + N (R - 1) rows"]),
        (256, 170, ["forward: log-probs", "of the predicting rows"]),
        (256, 92, ["clipped loss", "weights of whole step"]),
        (256, 14, ["backward, AdamW", "prompt: sum over N"]),
    ]
    for x, y, words in boxes:
        f.box(x, y, 210, 52, words)
    for y in (66, 144, 222):
        f.line([(119, y), (119, y + 24)], "l", True)
        f.line([(361, y + 26), (361, y + 2)], "l", True)
    f.line([(224, 274), (254, 274)], "l", True)
    f.line([(256, 40), (226, 40)], "l dash", True)
    f.text(14, 330, "a packed batch of one group", "b")
    x = 14
    for letter, wide in (("p", 150), ("a", 62), ("b", 84), ("c", 44), ("d", 74)):
        f.rect(x, 340, wide - 3, 26, kind_of(letter), 3)
        f.text(x + wide / 2 - 1, 358, "prompt" if letter == "p" else letter, on(letter) + " b", "middle")
        x += wide
    f.text(14, 390, "a response's last token predicts nothing: it is left out", "soft")
    return f


def clip():
    low, high = 0.8, 1.28
    f = Drawing(
        300,
        "The clipped loss of a token and where its slope is zero",
        "Two graphs of the loss against the ratio r of probabilities now and when sampled. For a positive advantage the"
        " loss falls with r until 1.28 and is flat from there. For a negative one it is flat up to 0.8 and rises with r"
        " after.",
    )
    for k, (advantage, kind) in enumerate(((1, "la"), (-1, "lb"))):
        left = 20 + 236 * k
        x = Axis(0, 2, left, left + 204)
        y = Axis(-1.6, 2.1, 214, 40)

        def loss(r, advantage=advantage):
            return -min(r * advantage, min(max(r, low), high) * advantage)

        f.text(left, 24, f"advantage {'+1: good' if advantage > 0 else '-1: bad'}", "b")
        f.line([(left, y(0)), (left + 204, y(0))], "thin")
        f.text(left + 204, y(0) - 6, "loss 0", "soft", "end")
        for mark in (low, 1, high):
            f.line([(x(mark), 40), (x(mark), 214)], "thin dash")
        for mark, words in ((low - 0.06, "0.8"), (1, "1"), (high + 0.08, "1.28")):
            f.text(x(mark), 232, words, "soft", "middle")
        corner = high if advantage > 0 else low
        f.line([(x(r), y(loss(r))) for r in (0, corner, 2)], kind)
        flat = (corner + 2) / 2 if advantage > 0 else corner / 2
        f.text(x(flat), y(loss(flat)) + (20 if advantage > 0 else -10), "slope 0", "", "middle")
    f.text(456, 252, "ratio r", "soft", "end")
    f.notes(
        20, 272, "Flat where the token has gone far enough already;", "steep where it went the wrong way, however far."
    )
    return f


FIGURES = {"decoder": decoder, "training_step": training_step, "clip": clip}
