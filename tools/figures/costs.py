"""What sharing saves: the two ratios with their limits, the work of a training step, the softmax that is merged."""

import json
from fractions import Fraction

from figures.layouts import SEVEN, exact_pairs, pair_ratio, printed, rho
from figures.svg import Axis, Drawing, kind_of, on


def panel(f, top, title, values, shape, limits, side="right"):
    """One graph: rho and A over one of N, P and R, both limits dashed.  `shape` makes (P, N, R) from a value."""
    left, right, low, high = 46, 400, top + 132, top + 30
    x = Axis(values[0], values[-1], left, right, logarithmic=True)
    tall = max(rho(*shape(v)) for v in values)
    y = Axis(0, max(tall, *limits) * 1.05, low, high)
    f.text(12, top + 14, title, "b")
    curves = [[(x(v), y(ratio(*shape(v)))) for v in values] for ratio in (rho, pair_ratio)]
    f.shape(curves[0] + curves[1][::-1], "neutral")
    step = 5 if tall > 8 else 2
    for mark in range(0, int(y.high) + 1, step):
        f.line([(left, y(mark)), (right, y(mark))], "thin")
        f.text(left - 6, y(mark) + 4.5, mark, "soft", "end")
    for v in values[::3]:
        f.text(x(v), low + 18, f"{v // 1024}K" if v >= 1024 else v, "soft", "middle")
    for limit, kind in zip(sorted(set(limits), reverse=True), ("lp dash", "lb dash")):
        f.line([(left, y(limit)), (right, y(limit))], kind + " dash")
        f.text(right + 6, y(limit) + 4.5, f"{limit:.3g}", "soft")
    f.line(curves[0], "lp")
    f.line(curves[1], "lb")
    at = 2 if side == "left" else len(values) // 2
    f.text(
        curves[0][at][0] + (8 if side == "left" else -8),
        curves[0][at][1] - 7,
        "rho",
        "b",
        "start" if side == "left" else "end",
    )
    f.text(curves[1][at][0] + (-12 if side == "left" else 10), curves[1][at][1] + 17, "A", "b")


def savings():
    p, r = 8192, 1024
    f = Drawing(
        524,
        "rho and A over the number of responses, the prompt's and the responses' length",
        f"Three graphs. Over N, with P = {p} and R = {r}, rho rises to its limit (P + R) / R = {(p + r) / r:g}, A to "
        f"(P + R)^2 / (R (2 P + R)) = {(p + r) ** 2 / (r * (2 * p + r)):.3g}. Over P, with "
        "N = 16 and R = 1024, both rise to 16. Over R, with N = 16 and P = 8192, both fall to 1. A is never above "
        "rho; a training step lies between the two.",
    )
    panel(
        f,
        4,
        f"over N, for P = {p}, R = {r}",
        [1 << k for k in range(10)],
        lambda v: (p, v, r),
        [(p + r) / r, (p + r) ** 2 / (r * (2 * p + r))],
    )
    panel(f, 170, "over P, for N = 16, R = 1024", [128 << k for k in range(13)], lambda v: (v, 16, r), [16])
    panel(f, 336, "over R, for N = 16, P = 8192", [64 << k for k in range(13)], lambda v: (p, 16, v), [1], "left")
    f.notes(12, 508, "~dashed: limits; a training step gains something between")
    return f


# Qwen3-8B, the model of `dualkv cost` without flags
L, C, F, V, H, HKV, D = 36, 4096, 12288, 151936, 32, 8, 128


def step_flops(rows, pairs, predictions):
    """(linear layers and head, attention) of a training step: see dkv_cost in common/cost.h."""
    linear = 2 * L * rows * (2 * C * H * D + 2 * C * HKV * D + 3 * C * F) + 2 * C * V * predictions
    return 3 * linear, 3.5 * 4 * D * H * L * pairs


def step_parts():
    prompt, count, length = 8192, 16, 1024
    copies, packed = exact_pairs(prompt, count, length)
    return {
        "replicated": step_flops(count * (prompt + length), copies, count * length),
        "packed": step_flops(prompt + count * length, packed, count * (length - 1) + 1),
    }


def step_work():
    parts = step_parts()
    whole = {name: sum(both) for name, both in parts.items()}
    f = Drawing(
        206,
        "Where the work of an update goes, replicated and packed",
        f"Two bars. Replicated: {parts['replicated'][0] / 1e12:.0f} TFLOP in linear layers and head, "
        f"{parts['replicated'][1] / 1e12:.0f} in attention. Packed: {parts['packed'][0] / 1e12:.0f} and "
        f"{parts['packed'][1] / 1e12:.0f}. The whole shrinks {whole['replicated'] / whole['packed']:.2f} times.",
    )
    x = Axis(0, whole["replicated"], 0, 452)
    for k, (name, (linear, attention)) in enumerate(parts.items()):
        y = 14 + 78 * k
        f.text(14, y + 12, f"{name}: {(linear + attention) / 1e12:.0f} TFLOP", "b")
        f.rect(14, y + 20, x(linear), 26, "ghost" if name == "replicated" else "p", 2)
        f.rect(14 + x(linear), y + 20, x(attention), 26, "ra", 2)
        f.text(14, y + 62, f"linear layers and head {linear / 1e12:.0f}, attention {attention / 1e12:.0f}", "soft")
    f.notes(
        14,
        176,
        f"*{whole['replicated'] / whole['packed']:.2f} times less work; attention's share grows",
        "~Qwen3-8B, P = 8192, N = 16, R = 1024",
    )
    return f


# Chapter 02: the scores of the seven tokens are ln w, for every query.
W, VALUES = [1, 1, 2, 4, 8, 4, 8], [8, 0, 4, 16, 2, -8, 6]


def attention_rows():
    """Rows 3 and 6: a bar for each weight."""
    rows = (3, 6)
    outputs = {}
    for row in rows:
        seen = [j for j in range(7) if SEVEN.sees(row, j)]
        total = sum(W[j] for j in seen)
        outputs[row] = (seen, total, Fraction(sum(W[j] * VALUES[j] for j in seen), total))
    f = Drawing(
        356,
        "The weights of two rows of attention",
        "; ".join(
            f"Row {row} of response {SEVEN.letter[row]} sees keys {', '.join(map(str, seen))} with weights "
            f"{', '.join(f'{W[j]}/{total}' for j in seen)}: its output is {output}"
            for row, (seen, total, output) in outputs.items()
        )
        + ". The other response has no bar: it is not seen.",
    )
    for k, row in enumerate(rows):
        seen, total, output = outputs[row]
        top, bottom = 14 + 160 * k, 112 + 160 * k
        f.text(14, top + 10, f"row {row} {SEVEN.letter[row]}: weights p, values v, o = {output}", "b")
        for j in range(7):
            x, letter = 60 + 58 * j, SEVEN.letter[j]
            if j in seen:
                height = 120 * W[j] / total
                f.rect(x, bottom - height, 44, height, kind_of(letter), 2)
                f.text(x + 22, bottom - height - 5, f"{W[j]}/{total}", "", "middle")
            else:
                f.text(x + 22, bottom - 5, "unseen", "soft", "middle", 12)
            f.line([(x, bottom), (x + 44, bottom)], "thin")
            f.text(x + 22, bottom + 17, f"{j} {letter}", "b" if j in seen else "soft", "middle")
            f.text(x + 22, bottom + 34, VALUES[j], "" if j in seen else "soft", "middle")
        f.text(14, bottom + 17, "key", "soft")
        f.text(14, bottom + 34, "v", "soft")
    f.text(14, 342, "o = sum of p v. The bars of a row add up to 1.", "soft")
    return f


def softmax_merge():
    """Row 6 of the seven tokens in tiles of two keys (chapter 05)."""
    w, v, row = W, VALUES, 6
    f = Drawing(
        318,
        "The online softmax of row 6, tile by tile",
        "Four tiles of keys from left to right, the keys of response a not seen. Under each the state after it: largest"
        " weight so far, sum l, output sum O. Between tiles the old sums are multiplied by a half each time the maximum"
        " doubles. At the end o = O / l = 2 and lse = ln 16.",
    )
    f.text(14, 24, "keys of row 6, in tiles of two, with weight w", "b")
    largest, total, output = None, Fraction(0), Fraction(0)
    for k, j0 in enumerate(range(0, 7, 2)):
        x, keys = 14 + 116 * k, range(j0, min(j0 + 2, 7))
        f.rect(x, 36, 104, 58, "box", 4)
        for j in keys:
            letter, seen = SEVEN.letter[j], SEVEN.sees(row, j)
            f.rect(x + 6 + 48 * (j - j0), 42, 44, 46, kind_of(letter) if seen else "empty", 3)
            f.text(x + 28 + 48 * (j - j0), 61, f"{j} {letter}", (on(letter) if seen else "soft") + " b", "middle")
            f.text(
                x + 28 + 48 * (j - j0),
                80,
                f"w={w[j]}" if seen else "masked",
                on(letter) if seen else "soft",
                "middle",
                13 if seen else 12,
            )
        seen = [j for j in keys if SEVEN.sees(row, j)]
        new = max([w[j] for j in seen] + ([largest] if largest else []))
        factor = Fraction(largest, new) if largest else Fraction(0)
        total = total * factor + sum(Fraction(w[j], new) for j in seen)
        output = output * factor + sum(Fraction(w[j], new) * v[j] for j in seen)
        f.line([(x + 52, 96), (x + 52, 140)], "l", True)
        f.rect(x, 144, 104, 82, "neutral", 4)
        f.notes(x + 10, 164, f"m = ln {new}", f"l = {total}", f"O = {output}")
        f.text(x + 10, 218, f"O / l = {output / total}", "soft")
        if largest:
            f.text(x - 6, 128, f"old × {factor}", "soft", "middle", 12)
        if j0 < 6:
            f.line([(x + 104, 185), (x + 115, 185)], "l", True)
        largest = new
    f.notes(
        14,
        252,
        f"*o = O / l = {output / total},  lse = ln {largest} + ln {total} = ln {largest * total}",
        "~Each tile is read once and forgotten. A new maximum makes",
        "~the old sums smaller; a tile without a key changes nothing.",
    )
    return f


def wrong(program):
    """What `dualkv cost` counts otherwise."""
    counted = json.loads(
        "\n".join(
            printed(program, "cost", "--prompt", "8192", "--responses", "16", "--response-length", "1024", "--json")
        )
    )
    found = []
    for name, ours in step_parts().items():
        c = counted[name]
        theirs = 3 * (c["linear_flops"] + c["head_flops"]), 3.5 * c["pair_flops"]
        if any(abs(a - b) > 1e-6 * b for a, b in zip(ours, theirs)):
            found.append(f"work of a step, {name}: the figures say {ours}, {program} says {theirs}")
    return found


FIGURES = {"savings": savings, "step_work": step_work, "attention_rows": attention_rows, "softmax_merge": softmax_merge}
