"""Kernels: who holds what, who does what when, and how fast each rung was measured to be."""

import os
import re

import course_tables
import make_tables
from figures.svg import Axis, Drawing

# Tiles of the fastest forward kernel (gpu/attention/fwd_7_roles.cuh) at D = 128: two warpgroups of 64 rows, 128 keys.
D, QUERY_ROWS, KEYS, BYTES = 128, 128, 128, 2


def memory():
    tile = KEYS * D * BYTES // 1024
    queries = 2 * QUERY_ROWS * D * BYTES // 1024
    f = Drawing(
        350,
        "Which memory holds what, from the card to a register",
        "Four nested layers. HBM: q, k, v, o of all rows. L2: K and V of the key head at work. Shared memory of a"
        f" multiprocessor: two query tiles of together {queries} KiB, two stages of keys and two of values of {tile} KiB"
        " each. Registers: scores, weights and the output sum of 64 rows; they never leave.",
    )
    layers = [
        ("HBM", "q, k, v, o of all T rows", "each key: once, if L2 keeps it"),
        ("L2", "K and V of the key head at work", "each key: once for a query tile"),
        (
            "shared memory",
            f"Q 2 tiles, {queries} KiB; K, V 2 stages of {tile} KiB",
            f"each key: once for {QUERY_ROWS} rows",
        ),
        ("registers", "S, P, and O, m, l of 64 rows", "T × T scores exist nowhere else"),
    ]
    for k, (name, held, read) in enumerate(layers):
        x, y = 14 + 14 * k, 12 + 78 * k
        for kind in (("neutral",) if k % 2 else ("bg", "box")):
            f.rect(x, y, 452 - 28 * k, 330 - 78 * k - 6 * k, kind, 6)
        f.notes(x + 12, y + 22, "*" + name, held, "~" + read)
    return f


def forward_roles():
    f = Drawing(
        392,
        "The forward kernel's roles: one producer, rings of tiles, consumers in turn",
        "Above, a producer thread fills rings in shared memory with two tiles of Q, two stages of K and two of V;"
        " consumers wait for full and give back empty. Below, a schedule: while consumer 0 is in its softmax, consumer"
        " 1 multiplies, so the tensor cores find work in turn. The first key tile is the response's own and masked, the"
        " others are the prompt's.",
    )
    f.box(14, 14, 100, 62, ["producer", "1 thread, TMA"], "box", "")
    f.text(190, 24, "rings in shared memory", "b")
    for k, (name, kinds) in enumerate((("Q", ("neutral", "neutral")), ("K", ("ra", "p")), ("V", ("ra", "p")))):
        for stage, kind in enumerate(kinds):
            x = 184 + 46 * (2 * k + stage)
            f.rect(x, 34, 40, 30, kind, 3)
            f.text(x + 20, 54, f"{name}{stage}", "b " + ({"p": "on-p", "ra": "on-r"}.get(kind, "")), "middle")
    f.line([(114, 44), (180, 44)], "l", True)
    f.text(147, 38, "full", "soft", "middle")
    f.line([(180, 58), (116, 58)], "l dash", True)
    f.text(147, 74, "empty", "soft", "middle")
    f.text(184, 84, "orange: own response, blue: prompt", "soft")
    f.box(14, 102, 218, 50, ["consumer 0: 64 query rows", "S, P, O in registers"])
    f.box(248, 102, 218, 50, ["consumer 1: 64 query rows", "S, P, O in registers"])
    f.text(14, 182, "in time, from left to right (not to scale)", "b")
    left, unit, lanes = 98, 54, {"producer": 196, "consumer 0": 238, "consumer 1": 280, "tensor cores": 322}
    for name, y in lanes.items():
        f.text(14, y + 20, name, "soft")
    loads = [("K0 Q", "ra"), ("K1 V0", "p"), ("K2 V1", "p"), ("", ""), ("K3 V2", "p"), ("", ""), ("K4 V3", "p")]
    for k, (words, kind) in enumerate(loads):
        if words:
            f.rect(left + unit * k, lanes["producer"], unit - 3, 32, kind, 3)
            f.text(
                left + unit * (k + 0.5) - 1,
                lanes["producer"] + 21,
                words,
                "on-p" if kind == "p" else "on-r",
                "middle",
                12,
            )
    for name, first in (("consumer 0", 1), ("consumer 1", 2)):
        y = lanes[name]
        for step in range(3):
            k = first + 2 * step
            if k > 6:
                continue
            kind = "ra" if step == 0 else "p"
            f.rect(left + unit * k, y, unit - 3, 32, kind, 3)
            words = ["S0"] if step == 0 else [f"S{step}", f"P{step - 1} V{step - 1}"]
            for row, line in enumerate(words):
                f.text(
                    left + unit * (k + 0.5) - 1,
                    y + (21 if len(words) == 1 else 14 + 13 * row),
                    line,
                    "on-r" if kind == "ra" else "on-p",
                    "middle",
                    12,
                )
            if k + 1 <= 6:
                f.rect(left + unit * (k + 1), y, unit - 3, 32, "box", 3)
                f.text(left + unit * (k + 1.5) - 1, y + 20, "softmax", "", "middle", 12)
    f.rect(left + unit, lanes["tensor cores"], 6 * unit - 3, 32, "neutral", 3)
    f.text(left + 4 * unit, lanes["tensor cores"] + 21, "work of 0, 1, 0, 1, ...", "", "middle")
    f.notes(14, 378, "~masked steps come first; the loop after has no mask code")
    return f


def backward_roles():
    f = Drawing(
        420,
        "The backward kernel's roles: keys stay, queries pass by",
        "In L2 lie Q, dO, lse, delta and the fp32 sum of dQ. A producer warp loads K and V once, then query tiles into"
        " two stages. Two consumer warpgroups keep 64 keys each with dK and dV in registers. They exchange dS through"
        " shared memory. A helper warp adds dQ in bulk to L2. Below, a step: S and dP, then dV, dQ and dK.",
    )
    f.rect(14, 12, 452, 44, "neutral", 6)
    f.text(26, 39, "L2: Q, dO, lse, delta, K, V", "b")
    f.text(454, 39, "sum of dQ, fp32", "b", "end")
    f.box(14, 78, 118, 40, "producer warp")
    f.box(348, 78, 118, 40, "helper warp")
    f.line([(73, 58), (73, 76)], "l", True)
    f.line([(407, 76), (407, 58)], "l", True)
    f.rect(14, 140, 452, 86, "box", 6)
    f.text(26, 160, "shared memory", "b")
    for x, wide, words, kind in (
        (26, 84, "K, V", "p"),
        (120, 130, "Q, dO: 2 stages", "neutral"),
        (260, 96, "dS: 2 bufs", "neutral"),
        (366, 88, "dQ", "neutral"),
    ):
        f.rect(x, 172, wide, 40, kind, 4)
        f.text(x + wide / 2, 196, words, "on-p" if kind == "p" else "", "middle")
    f.line([(73, 118), (73, 138)], "l", True)
    f.line([(407, 138), (407, 120)], "l", True)
    for k in range(2):
        x = 14 + 236 * k
        f.rect(x, 250, 216, 58, "p", 6)
        f.text(x + 108, 274, f"consumer {k}: keys {64 * k} to {64 * k + 63}", "on-p b", "middle")
        f.text(x + 108, 294, "dK, dV stay in registers", "on-p", "middle")
        f.line([(x + 90, 228), (x + 90, 248)], "l", True)
        f.line([(x + 126, 248), (x + 126, 228)], "l", True)
    f.text(14, 336, "a step of a consumer, in time", "b")
    for x, wide, words, kind in (
        (14, 44, "S", "neutral"),
        (62, 44, "dP", "neutral"),
        (110, 64, "exp → P", "box"),
        (178, 62, "→ dS", "box"),
        (244, 44, "dV", "neutral"),
        (292, 44, "dQ", "neutral"),
        (340, 44, "dK", "neutral"),
        (388, 78, "send dQ", "box"),
    ):
        f.rect(x, 346, wide, 30, kind, 3)
        f.text(x + wide / 2, 366, words, "", "middle")
    f.notes(
        14,
        396,
        "~Filled: tensor cores. All queries that see the keys pass",
        "~by: a prompt's sum over N responses stays in registers.",
    )
    return f


def bars(f, top, title, rows, most, unit, logarithmic=False):
    """Horizontal bars: (name, value, kind)."""
    f.text(14, top + 14, title, "b")
    x = Axis(0.05 if logarithmic else 0, most, 0, 250, logarithmic)
    for k, (name, value, kind) in enumerate(rows):
        y = top + 26 + 26 * k
        f.text(154, y + 15, name, "", "end")
        f.rect(162, y, max(x(value), 1), 20, kind, 2)
        f.text(162 + max(x(value), 1) + 6, y + 15, f"{make_tables.number(value)}{unit}", "soft")
    return top + 26 + 26 * len(rows)


def rung_records():
    """(direction, kernel, TFLOP/s, device and day) of each rung, in the order of kernels.def: bf16, D = 128."""
    records = [r for r in make_tables.gpu_records() if r["dtype"] == "bf16" and r["d"] == D]
    with open(os.path.join(make_tables.TOP, "common", "kernels.def"), encoding="utf-8") as file:
        rungs = re.findall(r"DKV_KERNEL\(gpu, (\w+), (\w+),", file.read())
    for direction, short in (("forward", "fwd"), ("backward", "bwd")):
        names = [name for d, name in rungs if d == short]
        for r in course_tables.chosen(records, direction, names):
            yield direction, r["kernel"], r["tflops"], f"{r['device'].split(',')[0]}, {r['date'][:10]}"


def ladder():
    rungs = list(rung_records())
    by = {
        d: [(kernel, rate, kind) for direction, kernel, rate, _ in rungs if direction == d]
        for d, kind in (("forward", "p"), ("backward", "ra"))
    }
    said = "; ".join(
        f"{d}: " + ", ".join(f"{name} {make_tables.number(v)}" for name, v, _ in rows) for d, rows in by.items()
    )
    f = Drawing(999, "The ladder of GPU kernels in useful TFLOP/s", f"Bars on a logarithmic scale. {said}.")
    most = max(rate for _, _, rate, _ in rungs)
    end = bars(f, 8, "forward, useful TFLOP/s", by["forward"], most, "", True)
    end = bars(f, end + 10, "backward", by["backward"], most, "", True)
    f.notes(
        14,
        end + 24,
        "~logarithmic: equal steps multiply the rate equally",
        "~each on its largest measured shape, bf16, D = 128",
        *["~" + line for line in sorted({device for _, _, _, device in rungs})],
    )
    f.height = end + 54 + 18 * len({device for _, _, _, device in rungs})
    return f


def peers():
    data, rows = course_tables.peer_records()
    shapes = {}
    for shape, name, in_copies, forward, backward in rows:
        kind = "ghost" if in_copies else "p" if name.startswith("hopper") else "neutral"
        shapes.setdefault(shape, []).append((name.replace(", packed mask", ""), forward + backward, kind))
    said = "; ".join(
        "N = %d, P = %d, R = %d: " % shape + ", ".join(f"{name} {ms:.0f} ms" for name, ms, _ in own)
        for shape, own in shapes.items()
    )
    f = Drawing(
        999,
        "Forward and backward beside other implementations",
        f"Bars of milliseconds, forward and backward together. {said}.",
    )
    end = 0
    for shape, own in shapes.items():
        own.sort(key=lambda row: row[1])
        end = bars(f, end + 8, "N = %d, P = %d, R = %d, milliseconds" % shape, own, max(row[1] for row in own), "")
    f.notes(
        14,
        end + 24,
        "~grey, hatched: the prompt in every copy; others: packed",
        f"~{data['device']}, {data['date'][:10]}, bf16, H=32, Hkv=8, D=128",
    )
    f.height = end + 54
    return f


def roofline():
    """The first three rungs against the machine with round numbers of chapter 08, which counts their bytes."""
    memory_rate, arithmetic = course_tables.BANDWIDTH * 1e-12, course_tables.FP32 * 1e-12
    points = []
    for r in course_tables.chosen(make_tables.gpu_records(), "forward", course_tables.ROWS_OF_KERNEL):
        tile, rows = course_tables.ROWS_OF_KERNEL[r["kernel"]]
        flops = 4 * r["d"] * make_tables.pairs(r["shape"])
        intensity = flops / (course_tables.keys_loaded(r["shape"], tile) * rows * r["d"] * 2)
        copies = r["tflops"] * r["ms"] / r["replicated_ms"] if r["replicated_ms"] else None
        points.append((r["kernel"], intensity, r["tflops"], copies))
    said = ", ".join(f"{name} at {x:.3g} operations a byte {make_tables.number(y)} TFLOP/s" for name, x, y, _ in points)
    f = Drawing(
        352,
        "Roofline of the first rungs",
        f"Useful TFLOP/s over operations for each loaded byte, both axes logarithmic. A roof rises with {memory_rate:g} TB/s and"
        f" is flat at {arithmetic:g} TFLOP/s. Measured: {said}. Grey: the same kernels on the replicated batch.",
    )
    x, y = Axis(0.25, 256, 54, 456, True), Axis(0.05, 100, 286, 40, True)
    f.text(14, 22, "useful TFLOP/s", "b")
    f.text(456, 326, "operations for each loaded byte", "b", "end")
    for mark in (0.1, 1, 10, 100):
        f.line([(54, y(mark)), (456, y(mark))], "thin")
        f.text(48, y(mark) + 4.5, f"{mark:g}", "soft", "end")
    for mark in (0.25, 1, 4, 16, 64, 256):
        f.text(x(mark), 304, f"{mark:g}", "soft", "middle")
    f.line([(x(0.25), y(0.25 * memory_rate)), (x(arithmetic / memory_rate), y(arithmetic)), (456, y(arithmetic))], "l")
    f.text(x(1.7), y(10), f"{memory_rate:g} TB/s", "soft", "end")
    f.text(456, y(arithmetic) - 8, f"{arithmetic:g} TFLOP/s", "soft", "end")
    for name, at, rate, copies in points:
        f.line([(x(at), y(rate)), (x(at), y(min(at * memory_rate, arithmetic)))], "thin dash")
        if copies:
            f.rect(x(at) - 6, y(copies) - 6, 12, 12, "ghost", 6)
        f.rect(x(at) - 6, y(rate) - 6, 12, 12, "p", 6)
        f.text(x(at) + 11, y(rate) + 4.5, f"{name} {make_tables.number(rate)}")
    f.text(14, 344, "blue: packed; grey: the prompt in every copy, counted alike", "soft", size=12)
    return f


FIGURES = {
    "memory": memory,
    "forward_roles": forward_roles,
    "backward_roles": backward_roles,
    "ladder": ladder,
    "peers": peers,
    "roofline": roofline,
}
